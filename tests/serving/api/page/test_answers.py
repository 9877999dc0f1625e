"""What a reader sees of an answer: text, code, tool calls, figures."""

import json
import re

from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import answered, ask, finished, in_page, prose
from tests.serving.api.page.scripted_chat import WAIT, ScriptedChat


def test_an_answer_streams_in_and_is_rendered_as_markdown(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Hello")
    expect(page.locator(".waiting")).to_be_visible()
    exchange.start()
    exchange.say("This is **bo")
    expect(prose(page)).to_have_text("This is **bo")
    exchange.say("ld**.\n\n| a | b |\n|:--|--:|\n| 1 | 2 |\n\n> quoted\n\n- one\n- two\n")
    expect(prose(page).locator("strong")).to_have_text("bold")
    expect(prose(page).locator("td.align-right")).to_have_text("2")
    expect(prose(page).locator("li")).to_have_text(["one", "two"])
    expect(prose(page).locator("blockquote")).to_have_text("quoted")
    exchange.finish()
    expect(finished(page)).to_be_visible()
    assert exchange.body == {
        "model": "weft-demo",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "durable": True,
        "stream_options": {"include_usage": True},
    }


def test_the_event_stream_is_read_alike_however_it_is_cut(page: Page) -> None:
    text = (
        'data: {"a":"é"}\r\nid: s:1\r\n\r\n: comment\n\nevent: x\r\ndata:one\r\ndata: two\r\n\r\n'
        "id:2\rdata: cut\r\rdata: [DONE]\n\n"
    )
    results = page.evaluate(
        in_page("read_cut_everywhere"),
        text,
    )
    events = [("s:1", '{"a":"é"}'), (None, "one\ntwo"), ("2", "cut"), (None, "[DONE]")]
    assert [json.loads(result) for result in results] == [[{"id": name, "data": data} for name, data in events]]


def test_only_the_block_that_grows_is_drawn_again(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Two paragraphs")
    exchange.start()
    exchange.say("First.\n\nSec")
    expect(prose(page).locator("p")).to_have_text(["First.", "Sec"])
    page.evaluate("document.querySelectorAll('.prose p').forEach((node) => { node.seen = true; })")
    exchange.say("ond.")
    expect(prose(page).locator("p")).to_have_text(["First.", "Second."])
    assert page.evaluate("[...document.querySelectorAll('.prose p')].map((node) => node.seen === true)") == [
        True,
        False,
    ]
    exchange.finish()
    expect(finished(page)).to_be_visible()


def test_code_is_highlighted_and_copied_as_it_was_written(page: Page, chat: ScriptedChat) -> None:
    source = 'def f(x):\n    return f"<{x}>"\n'
    answered(page, chat, "Code", f"```python\n{source}```\n")
    expect(prose(page).locator(".hljs-keyword").first).to_have_text("def")
    page.get_by_role("button", name="Copy code").click()
    expect(page.locator("#announcements")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == source


def test_stop_closes_the_request_and_keeps_what_came(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Count")
    exchange.start()
    exchange.say("One, two")
    expect(prose(page)).to_have_text("One, two")
    page.get_by_role("button", name="Stop the answer").click()
    assert exchange.disconnected.wait(WAIT)
    expect(prose(page)).to_have_text("One, two")
    expect(page.get_by_text("Stopped before the end.")).to_be_visible()
    again = answered(page, chat, "Go on", "three")
    assert again.body["messages"][1] == {"role": "assistant", "content": "One, two"}


def test_time_to_first_token_and_speed_are_measured(page: Page) -> None:
    stats = page.evaluate(in_page("measure_turn"), 2000)
    assert stats == {"firstTokenMs": 250, "tokens": 11, "tokensPerSecond": 5}


def test_tokens_that_arrive_together_are_no_measure_of_speed(page: Page) -> None:
    stats = page.evaluate(in_page("measure_turn"), 2)
    assert stats == {"firstTokenMs": 250, "tokens": 11, "tokensPerSecond": None}


def test_the_figures_of_an_answer_are_shown_under_it(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Hi")
    exchange.start()
    exchange.say("One")
    expect(prose(page)).to_have_text("One")
    exchange.say(" two")
    exchange.finish(completion_tokens=12)
    expect(page.locator(".stats")).to_have_text(
        re.compile(r"^[\d.]+ m?s to first token(\d+(\.\d)? tok/s)?12 tokensweft-demo$")
    )


def test_an_answer_cut_by_its_limit_says_so(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Long")
    exchange.start()
    exchange.say("and so")
    exchange.finish("length")
    expect(page.locator(".ending")).to_have_text("Cut at the token limit. A higher limit is in the settings.")


def test_tool_calls_are_shown_with_name_and_arguments(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Weather?")
    exchange.start()
    head = {"index": 0, "id": "c", "type": "function", "function": {"name": "weather", "arguments": ""}}
    exchange.delta({"tool_calls": [head]})
    for part in ('{"city": "Lon', 'don"}'):
        exchange.delta({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    exchange.finish("tool_calls")
    expect(page.locator(".tool-name")).to_have_text("weather")
    expect(page.locator(".tool-call code")).to_have_text('{\n  "city": "London"\n}')

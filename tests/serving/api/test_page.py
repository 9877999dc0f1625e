"""The chat page in a real browser, against a server whose every answer the test dictates."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from tests.serving.api.chat_tab import PHONE, Tab, answered, ask, chromium, finished, prose
from tests.serving.api.scripted_chat import WAIT, ScriptedChat, serving


def in_page(name: str) -> str:
    """The source of a function to evaluate in the page."""
    return (Path(__file__).parent / "in_page" / f"{name}.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedChat, str]]:
    chat = ScriptedChat()
    with serving(chat) as address:
        yield chat, address


@pytest.fixture
def chat(server: tuple[ScriptedChat, str]) -> Iterator[ScriptedChat]:
    yield server[0]
    server[0].ready = True
    assert server[0].no_exchange_waits(), "the page sent a request that the test did not expect"


@pytest.fixture(scope="module")
def shared_tab(browser: Browser, server: tuple[ScriptedChat, str]) -> Tab:
    return Tab(browser, server[1], permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture
def tab(shared_tab: Tab, chat: ScriptedChat) -> Iterator[Tab]:
    shared_tab.open_afresh()
    yield shared_tab
    assert shared_tab.complaints == [], "errors or policy violations in the console"


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.page


# -- answers


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
        "stream_options": {"include_usage": True},
    }


def test_the_event_stream_is_read_alike_however_it_is_cut(page: Page) -> None:
    text = 'data: {"a":"é"}\r\n\r\n: comment\n\nevent: x\r\ndata:one\r\ndata: two\r\n\r\ndata: cut\r\rdata: [DONE]\n\n'
    results = page.evaluate(
        in_page("read_cut_everywhere"),
        text,
    )
    assert [json.loads(result) for result in results] == [['{"a":"é"}', "one\ntwo", "cut", "[DONE]"]]


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


def test_markup_in_the_models_output_does_nothing(tab: Tab, chat: ScriptedChat) -> None:
    page = tab.page
    attack = (
        "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\n\n"
        "<style>body { display: none }</style>\n\n<iframe src='javascript:window.hit = 1'></iframe>\n\n"
        "[link](javascript:window.hit=1) ![pixel](http://192.0.2.1/pixel.png) [docs](https://example.org)\n\n"
        '```html\n<img src=x onerror="window.hit = 1">\n```\n\n```x"onmouseover="window.hit=1\ncode\n```\n'
    )
    answered(page, chat, attack, attack)
    expect(prose(page)).to_contain_text("<script>window.hit = 1</script>")
    assert page.evaluate("window.hit") is None
    assert page.locator("#transcript :is(script, style, iframe, img, [style])").count() == 0
    links = prose(page).locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["http://192.0.2.1/pixel.png", "https://example.org"]
    assert {link.get_attribute("rel") for link in links.all()} == {"noopener noreferrer nofollow"}
    assert all(url.startswith((tab.address, "data:")) for url in tab.requested)


def test_the_policy_blocks_a_script_that_got_past_everything_else(tab: Tab) -> None:
    page = tab.page
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("() => { document.body.innerHTML = '<img src=x onerror=\"window.hit = 1\">'; }")
    blocked = page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            const link = document.createElement("a");
            link.href = "javascript:window.hit = 1";
            document.body.append(link);
            link.click();
        })"""
    )
    assert blocked in ("script-src-elem", "require-trusted-types-for")
    assert page.evaluate("window.hit") is None
    assert len(tab.complaints) > 0
    tab.complaints.clear()


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
    stats = page.evaluate(in_page("measure_turn"))
    assert stats == {"firstTokenMs": 250, "tokens": 11, "tokensPerSecond": 5}


def test_the_figures_of_an_answer_are_shown_under_it(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Hi")
    exchange.start()
    exchange.say("One")
    expect(prose(page)).to_have_text("One")
    exchange.say(" two")
    exchange.finish(completion_tokens=12)
    expect(page.locator(".stats")).to_have_text(
        re.compile(r"^[\d.]+ m?s to first token\d+(\.\d)? tok/s12 tokensweft-demo$")
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


def test_finished_paragraphs_are_announced_politely(page: Page, chat: ScriptedChat) -> None:
    log = page.locator("#announcements[aria-live=polite]")
    exchange = ask(page, chat, "Speak")
    exchange.start()
    exchange.say("First paragraph.\n\nSecond")
    expect(log.locator("p")).to_have_text(["Answering", "First paragraph."])
    exchange.say(" paragraph.")
    exchange.finish()
    expect(log.locator("p")).to_have_text(["Answering", "First paragraph.", "Second paragraph."])


# -- what goes wrong


def test_a_refusal_is_shown_with_its_reason_and_can_be_retried(page: Page, chat: ScriptedChat) -> None:
    error = {"message": "The queue is full.", "type": "overloaded_error", "param": None, "code": "overloaded"}
    ask(page, chat, "Hello").refuse(503, error, {"Retry-After": "4"})
    failure = page.get_by_role("alert").filter(has_text="The queue is full.")
    expect(failure).to_contain_text("HTTP 503 · the server asks to wait 4 s")
    page.get_by_role("button", name="Retry").click()
    exchange = chat.exchange()
    assert exchange.body["messages"] == [{"role": "user", "content": "Hello"}]
    exchange.answer("Hello yourself.")
    expect(prose(page)).to_have_text("Hello yourself.")
    expect(page.locator(".failure:visible")).to_have_count(0)


def test_an_error_in_the_middle_of_a_stream_keeps_the_text(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Hello")
    exchange.start()
    exchange.say("Half an ans")
    exchange.event({"error": {"message": "The engine failed.", "type": "server_error", "param": None, "code": None}})
    exchange.cut()
    expect(page.locator(".failure:visible")).to_contain_text("The engine failed.")
    expect(prose(page)).to_have_text("Half an ans")


def test_a_stream_that_ends_without_its_last_event_is_an_error(page: Page, chat: ScriptedChat) -> None:
    exchange = ask(page, chat, "Hello")
    exchange.start()
    exchange.say("Half")
    exchange.cut()
    expect(page.locator(".failure:visible")).to_contain_text("The server ended the answer early.")


def test_the_connection_state_follows_readiness(page: Page, chat: ScriptedChat) -> None:
    expect(page.locator("#connection")).to_have_text("Ready")
    chat.ready = False
    page.evaluate("window.dispatchEvent(new Event('offline'))")
    expect(page.locator("#connection")).to_have_text("Starting")
    chat.ready = True
    page.evaluate("window.dispatchEvent(new Event('online'))")
    expect(page.locator("#connection")).to_have_text("Ready")


# -- conversations


def test_conversations_survive_a_reload(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "My name is Ada.", "Hello, **Ada**.")
    page.reload()
    expect(prose(page).locator("strong")).to_have_text("Ada")
    exchange = answered(page, chat, "What's my name?", "Ada.")
    assert [message["role"] for message in exchange.body["messages"]] == ["user", "assistant", "user"]
    page.get_by_role("button", name="New chat").first.click()
    expect(page.locator("#welcome")).to_be_visible()
    page.get_by_role("button", name="My name is Ada.", exact=True).click()
    expect(prose(page)).to_have_text("Ada.")


def test_conversations_are_renamed_searched_exported_and_deleted(
    page: Page, chat: ScriptedChat, tmp_path: Path
) -> None:
    answered(page, chat, "About wool", "Sheep.")
    page.get_by_role("button", name="New chat").first.click()
    answered(page, chat, "About silk", "Worms.")
    rows = page.locator(".row-title")
    expect(rows).to_have_text(["About silk", "About wool"])

    page.locator(".row", has_text="About wool").hover()
    page.get_by_role("button", name="Rename About wool").click()
    page.get_by_label("New title").fill("Wool")
    page.keyboard.press("Enter")
    expect(rows).to_have_text(["About silk", "Wool"])

    page.get_by_label("Search conversations").fill("sheep")
    expect(rows).to_have_text(["Wool"])
    page.locator(".row").hover()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export Wool as JSON").click()
    download.value.save_as(tmp_path / "wool.json")
    exported = json.loads((tmp_path / "wool.json").read_text())
    assert download.value.suggested_filename == "wool.json"
    assert [message["content"] for message in exported["messages"]] == ["About wool", "Sheep."]

    page.get_by_role("button", name="Delete Wool").click()
    expect(page.locator(".list-note")).to_have_text("Nothing found.")
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_text(["Wool"])


def test_an_answer_goes_on_while_another_conversation_is_read(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "First", "Done.")
    page.get_by_role("button", name="New chat").first.click()
    exchange = ask(page, chat, "Second")
    exchange.start()
    exchange.say("Begin")
    expect(prose(page)).to_have_text("Begin")
    page.get_by_role("button", name="First", exact=True).click()
    expect(prose(page)).to_have_text("Done.")
    exchange.say(", end.")
    exchange.finish()
    page.get_by_role("button", name="Second", exact=True).click()
    expect(prose(page)).to_have_text("Begin, end.")
    expect(finished(page)).to_be_visible()


def test_an_answer_can_be_asked_for_again(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "A number", "One.")
    page.get_by_role("button", name="Answer again").click()
    exchange = chat.exchange()
    assert exchange.body["messages"] == [{"role": "user", "content": "A number"}]
    exchange.answer("Two.")
    expect(prose(page)).to_have_text("Two.")
    expect(page.locator(".message")).to_have_count(2)


def test_the_last_question_can_be_edited(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "First", "One.")
    answered(page, chat, "Secnod", "What?")
    page.locator(".message.user").last.hover()
    page.get_by_role("button", name="Edit this message").click()
    expect(page.locator("#message")).to_have_value("Secnod")
    exchange = answered(page, chat, "Second", "Two.")
    assert [message["content"] for message in exchange.body["messages"]] == ["First", "One.", "Second"]
    expect(page.locator(".bubble")).to_have_text(["First", "Second"])


# -- settings


def test_settings_are_sent_kept_and_reset(page: Page, chat: ScriptedChat) -> None:
    wanted = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 64, "seed": 7,
        "presence_penalty": -0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1,
    }  # fmt: skip
    page.select_option("#model", "weft-large")
    page.get_by_role("button", name="Settings").click()
    for name, value in wanted.items():
        page.fill(f"#setting-{name}", str(value))
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Done").click()
    page.reload()
    expect(page.get_by_role("button", name="Settings, 10 changed")).to_be_visible()
    expect(page.locator("#model")).to_have_value("weft-large")
    exchange = answered(page, chat, "Hi", "Hi.")
    assert {name: exchange.body[name] for name in wanted} == wanted
    assert exchange.body["model"] == "weft-large"
    assert exchange.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert exchange.headers["authorization"] == "Bearer secret"

    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Reset to defaults").click()
    page.keyboard.press("Escape")
    exchange = answered(page, chat, "Hi again", "Hi.")
    assert set(exchange.body) == {"model", "messages", "stream", "stream_options"}


def test_a_setting_out_of_range_is_refused_with_the_reason(page: Page, chat: ScriptedChat) -> None:
    page.get_by_role("button", name="Settings").click()
    page.fill("#setting-top_p", "3")
    expect(page.get_by_role("alert").filter(has_text="less than or equal to 1")).to_be_visible()
    page.keyboard.press("Escape")
    assert "top_p" not in answered(page, chat, "Hi", "Hi.").body


# -- hands, eyes and screens


def test_everything_works_from_the_keyboard(page: Page, chat: ScriptedChat) -> None:
    focused = "document.activeElement.id"
    page.locator("a, button, input, select, textarea").first.focus()
    assert page.evaluate(focused) == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "message"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    exchange = chat.exchange()
    assert exchange.body["messages"][0]["content"] == "one\ntwo"
    exchange.start()
    exchange.say("Never ending")
    expect(prose(page)).to_have_text("Never ending")
    page.keyboard.press("Escape")
    assert exchange.disconnected.wait(WAIT)
    expect(finished(page)).to_be_visible()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#message")).to_have_value("one\ntwo")
    page.keyboard.press("Escape")
    expect(page.locator("#message")).to_have_value("")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("#welcome")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate(focused) == "message"


def test_a_phone_shows_all_without_sideways_scrolling(
    browser: Browser, server: tuple[ScriptedChat, str], chat: ScriptedChat
) -> None:
    phone = Tab(browser, server[1], **PHONE)
    phone.open_afresh()
    page = phone.page
    fits = (
        "document.documentElement.scrollWidth <= innerWidth && document.querySelector('main').scrollWidth <= innerWidth"
    )
    assert page.evaluate(fits)
    wide = "| " + " | ".join(["column"] * 12) + " |\n|" + "---|" * 12 + f"\n\n```\n{'x' * 300}\n```\n\n{'y' * 300}\n"
    answered(page, chat, "z" * 200, wide)
    assert page.evaluate(fits)
    page.get_by_role("button", name="Sidebar", exact=True).tap()
    page.locator("#sidebar").get_by_role("button", name="New chat").tap()
    expect(page.locator("#welcome")).to_be_visible()
    expect(page.locator("#sidebar")).not_to_be_visible()
    page.get_by_role("button", name="Settings").tap()
    sizes = page.evaluate(
        "[...document.querySelectorAll('input, textarea')].map((field) => parseFloat(getComputedStyle(field).fontSize))"
    )
    assert min(sizes) >= 16  # below it a phone's browser zooms into the field
    phone.context.close()
    assert phone.complaints == []


def test_light_and_dark_follow_the_system_until_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Switch to the light theme").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Switch to the dark theme").click()
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Page, chat: ScriptedChat, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    code = '```python\n# note\n@property\ndef f(x: int = 3) -> str:\n    return str(x) + "s"\n```\n'
    answered(
        page,
        chat,
        "All",
        f"# Head\n\n> quote\n\n`code` [link](https://example.org)\n\n- item\n\n{code}\n|a|\n|-|\n|b|\n",
    )
    error = {"message": "No such parameter.", "type": "invalid_request_error", "param": "top_z", "code": None}
    ask(page, chat, "Bad").refuse(400, error)
    expect(page.locator(".failure:visible")).to_contain_text("parameter top_z")
    page.get_by_role("button", name="Settings").click()
    faint = page.evaluate(in_page("faint_texts"))
    assert faint == []


def test_the_view_follows_the_answer_unless_the_reader_scrolled_away(page: Page, chat: ScriptedChat) -> None:
    at_bottom = "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight < 2)"
    exchange = ask(page, chat, "Long")
    exchange.start()
    exchange.say("line\n\n" * 60 + "**middle**\n\n")
    expect(prose(page).locator("strong")).to_have_text("middle")
    page.wait_for_function(f"{at_bottom}(document.getElementById('scroller'))")
    page.evaluate("document.getElementById('scroller').scrollTop = 100")
    expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
    exchange.say("line\n\n" * 20 + "*end*")
    expect(prose(page).locator("em")).to_have_text("end")
    assert page.evaluate("document.getElementById('scroller').scrollTop") == 100
    page.get_by_role("button", name="Jump to latest").click()
    page.wait_for_function(f"{at_bottom}(document.getElementById('scroller'))")
    expect(page.get_by_role("button", name="Jump to latest")).not_to_be_visible()
    exchange.finish()
    expect(finished(page)).to_be_visible()

"""An answer goes on without the page: a reload, a lost connection or a server that is replaced costs it nothing."""

from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import ask, finished, prose
from tests.serving.api.page.scripted_chat import WAIT, Exchange, ScriptedChat


def _begin(page: Page, chat: ScriptedChat) -> Exchange:
    exchange = ask(page, chat, "Count")
    assert exchange.body["durable"] is True
    exchange.start("s1")
    exchange.say("One, ")
    exchange.say("two, ")
    expect(prose(page)).to_have_text("One, two,")
    return exchange


def _go_on(chat: ScriptedChat) -> None:
    again = chat.exchange()
    assert again.path == "/v1/streams/s1"
    assert again.headers["last-event-id"] == "s1:2"
    again.start("s1", after=2)
    again.say("three.")
    again.finish()


def test_a_reload_in_the_middle_of_an_answer_goes_on_with_it(page: Page, chat: ScriptedChat) -> None:
    exchange = _begin(page, chat)
    page.reload()
    assert exchange.disconnected.wait(WAIT)
    expect(prose(page)).to_have_text("One, two,")
    _go_on(chat)
    expect(finished(page)).to_be_visible()
    expect(prose(page)).to_have_text("One, two, three.")
    assert chat.cancelled.empty()
    page.reload()
    expect(prose(page)).to_have_text("One, two, three.")


def test_a_lost_connection_is_made_again_and_the_reader_sees_nothing_of_it(page: Page, chat: ScriptedChat) -> None:
    _begin(page, chat).cut()
    _go_on(chat)
    expect(finished(page)).to_be_visible()
    expect(prose(page)).to_have_text("One, two, three.")
    expect(page.locator(".failure:visible")).to_have_count(0)


def test_a_server_that_hands_its_streams_over_is_asked_again_until_one_has_them(page: Page, chat: ScriptedChat) -> None:
    exchange = _begin(page, chat)
    exchange.raw(b'data: {"error": {"message": "stopping", "code": "stream_moved"}}\n\n')
    exchange.cut()
    chat.exchange().refuse(503, {"message": "starting", "code": "engine_unavailable"})
    _go_on(chat)
    expect(finished(page)).to_be_visible()
    expect(prose(page)).to_have_text("One, two, three.")


def test_an_answer_that_the_server_no_longer_has_keeps_what_came(page: Page, chat: ScriptedChat) -> None:
    _begin(page, chat)
    page.reload()
    chat.exchange().refuse(404, {"message": "there is no such stream", "code": "stream_not_found"})
    expect(page.get_by_text("Interrupted: the page was closed before the end.")).to_be_visible()
    expect(prose(page)).to_have_text("One, two,")


def test_stop_ends_the_stream_at_the_server(page: Page, chat: ScriptedChat) -> None:
    exchange = _begin(page, chat)
    page.get_by_role("button", name="Stop the answer").click()
    assert exchange.disconnected.wait(WAIT)
    assert chat.cancelled.get(timeout=WAIT) == "s1"
    expect(page.get_by_text("Stopped before the end.")).to_be_visible()

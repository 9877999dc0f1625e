"""Refusals, streams that break off, a server that is away: each is said, and nothing that came is lost."""

from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import ask, prose
from tests.serving.api.page.scripted_chat import ScriptedChat


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

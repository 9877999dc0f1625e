"""Thumbs below an answer."""

from playwright.sync_api import Locator, Page, expect

from tests.serving.api.page.chat_tab import ask, finished, prose
from tests.serving.api.page.response_events import begin, end, message
from tests.serving.api.page.scripted_chat import WAIT, ScriptedChat


def answered(page: Page, chat: ScriptedChat, reply_id: str | None = "chatcmpl-1") -> None:
    exchange = ask(page, chat, "Hello")
    exchange.start()
    named = {} if reply_id is None else {"id": reply_id}
    exchange.event({**named, "choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": None}]})
    exchange.finish()
    expect(finished(page)).to_be_visible()
    expect(prose(page)).to_have_text("Hi.")


def thumb(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=f"{name} answer", exact=True)


def pressed(page: Page, good: str, bad: str) -> None:
    expect(thumb(page, "Good")).to_have_attribute("aria-pressed", good)
    expect(thumb(page, "Bad")).to_have_attribute("aria-pressed", bad)


def test_a_thumb_is_sent_by_the_keyboard_and_holds_over_a_reload(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat)
    pressed(page, "false", "false")
    thumb(page, "Good").focus()
    page.keyboard.press("Enter")
    pressed(page, "true", "false")
    expect(thumb(page, "Good")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    pressed(page, "false", "true")
    sent = [chat.ratings.get(timeout=WAIT) for _ in range(2)]
    assert sent == [{"id": "chatcmpl-1", "rating": "up"}, {"id": "chatcmpl-1", "rating": "down"}]
    page.reload()
    pressed(page, "false", "true")


def test_a_rating_that_the_server_refuses_is_not_shown_as_given(page: Page, chat: ScriptedChat) -> None:
    chat.takes_ratings = False
    answered(page, chat)
    thumb(page, "Bad").click()
    expect(page.locator("#toasts")).to_contain_text("The rating did not reach the server: there is no such answer")
    pressed(page, "false", "false")
    assert chat.ratings.get(timeout=WAIT)["rating"] == "down"


def test_a_turn_with_tools_is_rated_by_its_response(page: Page, chat: ScriptedChat) -> None:
    chat.tools = [{"type": "calculator", "functions": [{"name": "calculator", "description": "Computes."}]}]
    page.reload()
    page.get_by_role("button", name="Calculator").click()
    exchange = ask(page, chat, "Hello")
    begin(exchange)
    end(exchange, [message("Hi.")])
    thumb(page, "Good").click()
    pressed(page, "true", "false")
    assert chat.ratings.get(timeout=WAIT) == {"id": "resp_1", "rating": "up"}


def test_an_answer_whose_id_is_not_known_has_no_thumbs(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, None)
    expect(thumb(page, "Good")).to_have_count(0)

"""The memory of a user: nobody is remembered who did not say so, and what is remembered can be read and forgotten."""

from playwright.sync_api import Locator, Page, expect

from tests.serving.api.page.chat_tab import SCHEMES, answered, ask, finished, in_page
from tests.serving.api.page.response_events import begin, end, message
from tests.serving.api.page.scripted_chat import ScriptedChat

ATTACK = "<img src=x onerror='window.hit = 1'>"


def entry(number: int, text: str, level: int = 0) -> dict[str, object]:
    return {"id": str(number), "level": level, "text": text, "created_at": 1795291200}


def memory(page: Page) -> Locator:
    page.get_by_role("button", name="Settings").click()
    page.locator("#settings").get_by_role("button", name="Memory").click()
    return page.get_by_role("dialog", name="Memory")


def test_nobody_is_named_to_the_server_before_they_switch_the_memory_on(page: Page, chat: ScriptedChat) -> None:
    chat.memory = []
    assert "user" not in answered(page, chat, "Hello", "Hi.").body
    assert chat.remembers == {}
    dialog = memory(page)
    remember = dialog.get_by_role("switch", name="Remember what I say")
    expect(remember).to_be_enabled()  # once the server has told how it is
    expect(remember).not_to_be_checked()
    remember.focus()
    page.keyboard.press("Space")
    expect(dialog).to_contain_text("Nothing yet.")
    (user,) = chat.remembers
    assert chat.remembers == {user: True}
    page.keyboard.press("Escape")
    page.reload()
    exchange = ask(page, chat, "My cat is called Tom.")
    assert exchange.path == "/v1/responses"
    assert exchange.body["user"] == user
    begin(exchange)
    end(exchange, [message("Noted.")], notices=[{"kind": "memory_used", "text": "x", "facts": {"notes": ["1"]}}])
    expect(page.locator(".notice")).to_contain_text("What you said earlier was used for this answer.")
    page.get_by_role("button", name="See the memory").click()
    expect(remember).to_be_checked()
    remember.click()
    expect(dialog).to_contain_text("Nothing is remembered.")
    assert chat.remembers == {user: False}
    page.keyboard.press("Escape")
    assert "user" not in answered(page, chat, "Hello", "Hi.").body


def test_entries_are_read_and_forgotten_one_by_one_and_all_at_once_after_a_second_word(
    page: Page, chat: ScriptedChat
) -> None:
    chat.memory = [entry(1, "User: I like tea.", level=1), entry(2, ATTACK), entry(3, "User: My cat is called Tom.")]
    dialog = memory(page)
    entries = dialog.get_by_role("listitem")
    expect(entries.locator("p")).to_have_text(["User: My cat is called Tom.", ATTACK, "User: I like tea."])
    expect(entries.last).to_contain_text("Summary")
    entries.first.get_by_role("button", name="Forget this").click()
    expect(entries).to_have_count(2)
    dialog.get_by_role("button", name="Forget everything").click()
    expect(entries).to_have_count(2)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(in_page("faint_texts")) == []
    dialog.get_by_role("button", name="Really forget everything?").click()
    expect(entries).to_have_count(0)
    assert chat.memory == []
    assert page.evaluate("window.hit") is None


def test_a_server_without_a_memory_is_said_to_have_none(page: Page, chat: ScriptedChat) -> None:
    dialog = memory(page)
    expect(dialog).to_contain_text("This server has no memory.")
    expect(dialog.get_by_role("switch")).to_be_disabled()
    page.keyboard.press("Escape")
    answered(page, chat, "Hello", "Hi.")
    expect(finished(page)).to_be_visible()

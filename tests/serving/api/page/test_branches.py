"""A question asked in other words, an answer given again: each stands beside the one before, and both can be read."""

import json
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests.serving.api.page.chat_tab import answered, finished, prose
from tests.serving.api.page.scripted_chat import Exchange, ScriptedChat


def edited(page: Page, chat: ScriptedChat, old: str, new: str, answer: str) -> Exchange:
    message = page.locator(".message.user", has_text=old)
    message.hover()
    message.get_by_role("button", name="Edit this message").click()
    expect(page.locator("#message")).to_have_value(old)
    return answered(page, chat, new, answer)


def again(page: Page, chat: ScriptedChat, old: str, answer: str) -> Exchange:
    page.locator(".message.assistant", has_text=old).get_by_role("button", name="Answer again").click()
    exchange = chat.exchange()
    exchange.answer(answer)
    expect(prose(page)).to_have_text(answer)
    expect(finished(page)).to_be_visible()
    return exchange


def texts(exchange: Exchange) -> list[str]:
    return [message["content"] for message in exchange.body["messages"]]


def shown(page: Page) -> Locator:
    return page.locator(".bubble, .prose")


def test_an_edited_question_begins_a_branch_and_the_old_one_keeps_what_followed(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "First", "One.")
    answered(page, chat, "Secnod", "What?")
    answered(page, chat, "Third", "Three.")
    exchange = edited(page, chat, "Secnod", "Second", "Two.")
    assert texts(exchange) == ["First", "One.", "Second"]
    expect(shown(page)).to_have_text(["First", "One.", "Second", "Two."])
    versions = page.get_by_role("group", name="Versions of this message")
    expect(versions).to_have_text("2 / 2")
    versions.get_by_role("button", name="Previous version").click()
    expect(shown(page)).to_have_text(["First", "One.", "Secnod", "What?", "Third", "Three."])
    page.reload()
    expect(shown(page)).to_have_text(["First", "One.", "Secnod", "What?", "Third", "Three."])
    assert texts(answered(page, chat, "Fourth", "Four.")) == [
        "First", "One.", "Secnod", "What?", "Third", "Three.", "Fourth",
    ]  # fmt: skip
    versions.get_by_role("button", name="Next version").click()
    page.reload()
    expect(shown(page)).to_have_text(["First", "One.", "Second", "Two."])


def test_the_first_question_can_be_edited_too(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "Frist", "What?")
    exchange = edited(page, chat, "Frist", "First", "One.")
    assert texts(exchange) == ["First"]
    page.reload()
    expect(shown(page)).to_have_text(["First", "One."])
    expect(page.get_by_role("group", name="Versions of this message")).to_have_text("2 / 2")


def test_an_answer_asked_for_again_stands_beside_the_first_and_the_chat_goes_on_from_the_chosen_one(
    page: Page, chat: ScriptedChat
) -> None:
    answered(page, chat, "A number", "One.")
    assert texts(again(page, chat, "One.", "Two.")) == ["A number"]
    again(page, chat, "Two.", "Three.")
    expect(page.locator(".message")).to_have_count(2)
    versions = page.get_by_role("group", name="Versions of this answer")
    expect(versions).to_have_text("3 / 3")
    for _ in range(2):
        versions.get_by_role("button", name="Previous version").click()
    expect(prose(page)).to_have_text("One.")
    assert texts(answered(page, chat, "Another", "Four.")) == ["A number", "One.", "Another"]


def test_versions_are_switched_from_the_keyboard_and_read_out(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "A number", "One.")
    again(page, chat, "One.", "Two.")
    before = page.get_by_role("button", name="Previous version")
    before.focus()
    page.keyboard.press("Enter")
    expect(prose(page)).to_have_text("One.")
    expect(page.locator("#announcements")).to_contain_text("Version 1 of 2")
    expect(before).to_be_focused()
    expect(before).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Enter")
    expect(prose(page)).to_have_text("One.")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(prose(page)).to_have_text("Two.")


def test_an_edit_that_is_given_up_changes_nothing_and_the_focus_returns(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "First", "One.")
    answered(page, chat, "Second", "Two.")
    edit = page.get_by_role("button", name="Edit this message").first
    edit.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".marked .bubble")).to_have_text("First")
    page.keyboard.type(" and more")
    page.keyboard.press("Escape")
    expect(edit).to_be_focused()
    expect(page.locator("#message")).to_have_value("")
    expect(page.locator(".marked")).to_have_count(0)
    expect(shown(page)).to_have_text(["First", "One.", "Second", "Two."])


def test_nothing_branches_while_an_answer_is_on_its_way(page: Page, chat: ScriptedChat) -> None:
    answered(page, chat, "A number", "One.")
    again(page, chat, "One.", "Two.")
    page.fill("#message", "More")
    page.keyboard.press("Enter")
    exchange = chat.exchange()
    exchange.start()
    exchange.say("Wait")
    expect(prose(page)).to_have_text("Wait")
    expect(page.get_by_role("button", name="Answer again").first).to_be_disabled()
    expect(page.get_by_role("button", name="Edit this message").first).to_be_disabled()
    page.get_by_role("button", name="Previous version").click(force=True)
    expect(prose(page).first).to_have_text("Wait")
    exchange.finish()
    expect(page.get_by_role("button", name="Answer again").first).to_be_enabled()


def test_a_search_finds_what_another_branch_says_and_shows_it_and_the_export_has_all(
    page: Page, chat: ScriptedChat, tmp_path: Path
) -> None:
    answered(page, chat, "About wool", "Sheep.")
    edited(page, chat, "About wool", "About silk", "Worms.")
    page.get_by_label("Search conversations").fill("sheep")
    page.locator(".row-title").click()
    expect(shown(page)).to_have_text(["About wool", "Sheep."])
    page.locator(".row").hover()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export About wool as JSON").click()
    download.value.save_as(tmp_path / "wool.json")
    exported = json.loads((tmp_path / "wool.json").read_text())
    facts = [(message["id"], message["parent"], message["content"]) for message in exported["messages"]]
    assert facts == [("0", None, "About wool"), ("1", "0", "Sheep."), ("2", None, "About silk"), ("3", "2", "Worms.")]
    assert exported["first"] == "0"


def test_a_conversation_of_an_earlier_release_is_taken_over(page: Page, chat: ScriptedChat) -> None:
    answer = {"role": "assistant", "content": "One.", "toolCalls": [], "citations": [], "model": "m"}
    answer |= {"finishReason": "stop", "stats": None, "error": None, "stream": None, "notices": ["Kept."]}
    old = {"id": "old", "title": "Old", "created": 1, "updated": 1}
    old["messages"] = [{"role": "user", "content": "First"}, answer]
    page.goto("/static/images/mark.svg")
    page.evaluate("(old) => localStorage.setItem('weft.conversation.old', JSON.stringify(old))", old)
    page.goto("/#/c/old")
    expect(shown(page)).to_have_text(["First", "One."])
    expect(page.locator(".notices")).to_have_text("Kept.")
    again(page, chat, "One.", "Two.")
    expect(page.get_by_role("group", name="Versions of this answer")).to_have_text("2 / 2")


def test_a_failure_without_a_word_is_replaced_by_the_next_try(page: Page, chat: ScriptedChat) -> None:
    page.fill("#message", "Hello")
    page.keyboard.press("Enter")
    chat.exchange().refuse(503, {"message": "Full.", "type": "overloaded_error", "param": None, "code": "overloaded"})
    page.get_by_role("button", name="Retry").click()
    chat.exchange().answer("Hi.")
    expect(prose(page)).to_have_text("Hi.")
    expect(page.locator(".versions:visible")).to_have_count(0)

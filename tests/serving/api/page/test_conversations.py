"""Conversations are kept, found, changed and continued."""

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import answered, ask, finished, prose
from tests.serving.api.page.scripted_chat import ScriptedChat


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

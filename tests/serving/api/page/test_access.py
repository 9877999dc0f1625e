"""Keyboard, screen reader, small screens, contrast, scrolling."""

from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.serving.api.page.chat_tab import PHONE, Tab, answered, ask, finished, in_page, prose
from tests.serving.api.page.scripted_chat import WAIT, ScriptedChat


def test_finished_paragraphs_are_announced_politely(page: Page, chat: ScriptedChat) -> None:
    log = page.locator("#announcements[aria-live=polite]")
    exchange = ask(page, chat, "Speak")
    exchange.start()
    exchange.say("First paragraph.\n\nSecond")
    expect(log.locator("p")).to_have_text(["Answering", "First paragraph."])
    exchange.say(" paragraph.")
    exchange.finish()
    expect(log.locator("p")).to_have_text(["Answering", "First paragraph.", "Second paragraph."])


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

"""What the model thinks stands above its answer, folded."""

from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import Tab, ask, finished, prose
from tests.serving.api.page.scripted_chat import ScriptedChat

THOUGHT = "Two and two. <img src=x onerror='window.hit = 1'>"


def test_reasoning_is_folded_above_the_answer_and_stays_text(tab: Tab, chat: ScriptedChat) -> None:
    page: Page = tab.page
    exchange = ask(page, chat, "What is 2 + 2?")
    exchange.start()
    exchange.delta({"reasoning_content": THOUGHT[:9]})
    exchange.delta({"reasoning_content": THOUGHT[9:]})
    reasoning = page.locator("details.reasoning")
    expect(reasoning.locator("summary")).to_have_text("Reasoning")
    exchange.say("Four.")
    exchange.finish()
    expect(finished(page)).to_be_visible()
    expect(prose(page)).to_have_text("Four.")
    expect(reasoning.locator("pre")).not_to_be_visible()
    reasoning.locator("summary").click()
    expect(reasoning.locator("pre")).to_have_text(THOUGHT)
    assert page.evaluate("window.hit") is None
    page.reload()
    expect(page.locator("details.reasoning pre")).to_have_text(THOUGHT)


def test_an_answer_without_reasoning_shows_none(tab: Tab, chat: ScriptedChat) -> None:
    exchange = ask(tab.page, chat, "Hello")
    exchange.start()
    exchange.say("Hi.")
    exchange.finish()
    expect(finished(tab.page)).to_be_visible()
    expect(tab.page.locator("details.reasoning")).not_to_be_visible()

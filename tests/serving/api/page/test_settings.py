"""Settings reach the server, and stay."""

from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import answered
from tests.serving.api.page.scripted_chat import ScriptedChat


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
    assert set(exchange.body) == {"model", "messages", "stream", "durable", "stream_options"}


def test_a_setting_out_of_range_is_refused_with_the_reason(page: Page, chat: ScriptedChat) -> None:
    page.get_by_role("button", name="Settings").click()
    page.fill("#setting-top_p", "3")
    expect(page.get_by_role("alert").filter(has_text="less than or equal to 1")).to_be_visible()
    page.keyboard.press("Escape")
    assert "top_p" not in answered(page, chat, "Hi", "Hi.").body

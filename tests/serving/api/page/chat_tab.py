"""The chat page in a browser tab, and what tests do there again and again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.serving.api.page.scripted_chat import WAIT, Exchange, ScriptedChat

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DESKTOP = {"width": 1100, "height": 700}
PHONE = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


@contextmanager
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


class Tab:
    """One browser tab for all tests, emptied between them: opening a browser's context costs more than most tests."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, "base_url": address, **options})
        self.context.set_default_timeout(WAIT * 1000)
        self.address = address
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self._complain(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))

    def open_afresh(self) -> None:
        self.page.goto("/static/images/mark.svg")  # the page itself would write what it holds as it goes
        self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
        self.page.emulate_media(color_scheme="light")
        self.complaints.clear()
        self.requested.clear()
        self.page.goto("/")
        expect(self.page.locator("#model")).to_be_enabled()

    def _complain(self, kind: str, text: str) -> None:
        # The browser reports every refused request; whether the page handles it is what the tests look at.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.complaints.append(text)


def in_page(name: str) -> str:
    """The source of a function to evaluate in the page."""
    return (Path(__file__).parent / "in_page" / f"{name}.js").read_text(encoding="utf-8")


def ask(page: Page, chat: ScriptedChat, text: str) -> Exchange:
    page.fill("#message", text)
    page.locator(".send").click()
    return chat.exchange()


def prose(page: Page) -> Locator:
    return page.locator(".message.assistant .prose").last


def finished(page: Page) -> Locator:
    return page.locator(".message.assistant").last.locator(".footer")


def answered(page: Page, chat: ScriptedChat, question: str, answer: str) -> Exchange:
    exchange = ask(page, chat, question)
    exchange.answer(answer)
    expect(finished(page)).to_be_visible()
    return exchange

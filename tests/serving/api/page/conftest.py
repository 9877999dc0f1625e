"""The chat page in a real browser, against a server whose every answer the test dictates."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.serving.api.page.chat_tab import Tab, chromium
from tests.serving.api.page.scripted_chat import ScriptedChat, serving


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def server() -> Iterator[tuple[ScriptedChat, str]]:
    chat = ScriptedChat()
    with serving(chat) as address:
        yield chat, address


@pytest.fixture
def chat(server: tuple[ScriptedChat, str]) -> Iterator[ScriptedChat]:
    yield server[0]
    server[0].ready = True
    server[0].tools = []
    server[0].memory = None
    server[0].remembers.clear()
    server[0].unreadable.clear()
    server[0].files.clear()
    server[0].store_has_expired = False
    server[0].written.clear()
    server[0].takes_ratings = True
    assert server[0].no_exchange_waits(), "the page sent a request that the test did not expect"


@pytest.fixture(scope="package")
def shared_tab(browser: Browser, server: tuple[ScriptedChat, str]) -> Tab:
    return Tab(browser, server[1], permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture
def tab(shared_tab: Tab, chat: ScriptedChat) -> Iterator[Tab]:
    shared_tab.open_afresh()
    yield shared_tab
    assert shared_tab.complaints == [], "errors or policy violations in the console"


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.page

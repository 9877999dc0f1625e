"""The status page in a real browser, with numbers that the test dictates."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.api.status.board import StatusBoard
from serving.api.status.routes import status_routes
from tests.serving.api.page.chat_tab import PHONE, chromium
from tests.serving.api.page.scripted_chat import ScriptedChat, serving

LOOKS = 30


class DictatedBoard:
    """What StatusBoard.shown gives; a `refusal` is answered instead, where there is one."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.numbers: dict[str, Any] = {
            "model": "m", "version": "1.2.3", "time": 1_700_000_000.0, "up_seconds": 93_784.0, "state": "ready",
            "away_seconds": None,
            "rung": "shed_batch", "rung_level": 1, "batch_limit": 16, "running": 5,
            "waiting": {"interactive": 1, "standard": 2, "batch": 3, "other": 0},
            "pages": {"used": 20, "pinned": 5, "free": 75}, "window_seconds": 60,
            "first_token": [0.0123, 2.5], "between_tokens": None,
            "refusals": {"queue_too_long": 7, "invalid_value": 2},
            "restarts": [{"time": 1_700_000_000.0, "away_seconds": 3.2}],
            "look_seconds": 1.0, "kept_looks": 120,
            "looks": {
                "page_share": [0.25] * LOOKS, "output_rate": [None, *range(LOOKS - 1)], "prompt_rate": [0.0] * LOOKS,
                **dict.fromkeys(("first_token_p50", "first_token_p99"), [0.01] * LOOKS),
                **dict.fromkeys(("between_tokens_p50", "between_tokens_p99"), [None] * LOOKS),
            },
        }  # fmt: skip

    async def shown(self) -> dict[str, Any]:
        return self.numbers


class Served:
    def __init__(self) -> None:
        self.board = DictatedBoard()
        self.app = Starlette(routes=status_routes(cast(StatusBoard, self.board)))
        self.app.add_middleware(_Refusing, board=self.board)


class _Refusing:
    def __init__(self, app: Any, board: DictatedBoard) -> None:
        self._app, self._board = app, board

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._board.refusal is not None and Request(scope).url.path == "/status.json":
            refused: Response = JSONResponse({"error": {"message": self._board.refusal}}, 403)
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[DictatedBoard, Page, list[str]]]:
    served, complaints = Served(), []
    with serving(cast(ScriptedChat, served)) as address, chromium() as browser:
        page = browser.new_context(base_url=address, **PHONE).new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto("/status")
        yield served.board, page, complaints


def test_what_the_server_says_is_drawn_and_drawn_anew(opened: tuple[DictatedBoard, Page, list[str]]) -> None:
    board, page, complaints = opened
    expect(page.locator("#state")).to_have_text("Ready")
    for place, text in {
        "#model": "m", "#uptime": "up 1 d 2 h", "#running": "5", "#waiting": "6", "#page-share": "25",
        "#first-p50": "12 ms", "#first-p99": "2.5 s", "#between-p50": "–", "#refused": "9", "#output-rate": "28",
        "#restarts li": "away 3.2 s", ".ladder .now": "no batch work",
    }.items():  # fmt: skip
        expect(page.locator(place)).to_contain_text(text)
    assert page.locator("#fabric .on").count() == 5
    assert (page.locator("#rate-chart .trace.a").get_attribute("d") or "").count("L") == LOOKS - 2
    assert page.locator("#between-chart .trace.a").get_attribute("d") == ""
    board.numbers |= {"running": 7, "state": "draining", "rung": "normal", "rung_level": 0}
    expect(page.locator("#running")).to_have_text("7")
    expect(page.locator("#state")).to_have_text("Draining")
    assert complaints == [], "errors or policy violations in the console"


def test_nothing_is_wider_than_a_phone(opened: tuple[DictatedBoard, Page, list[str]]) -> None:
    _, page, _ = opened
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_refusal_is_told_in_the_servers_words_and_got_over(opened: tuple[DictatedBoard, Page, list[str]]) -> None:
    board, page, _ = opened
    board.refusal = "this key may not do that: it needs the scope <b>admin</b>"
    expect(page.locator("#notice")).to_have_text(f"The server says: {board.refusal}")
    expect(page.locator("#state")).to_have_text("No answer")
    board.refusal = None
    expect(page.locator("#notice")).to_be_hidden()

"""`weft reviews` against a real admin listener."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving import cli
from serving.api.admin import build_admin_app
from serving.api.admin_listener import AdminListener
from serving.config import ServerConfig
from serving.orchestrator.moderation.judges.judge import Finding
from serving.orchestrator.moderation.review_record import Subject
from serving.settings.moderation import JudgeConfig, ModerationConfig
from tests.serving.api.conftest import ApiMaker, chat_format, make_api, tokenizer

__all__ = ["chat_format", "make_api", "tokenizer"]  # fixtures


@pytest.fixture
async def url(make_api: ApiMaker, tmp_path: Path) -> AsyncIterator[str]:
    config = ModerationConfig(judges={"rules": JudgeConfig(kind="rules")}, review=tmp_path / "review.sqlite")
    service = make_api(make_api.says("x"), moderation=config).service
    assert service.moderation is not None
    assert service.moderation.review is not None
    for name, category in (("a", "hate"), ("b", "violence"), ("c", "hate")):
        text = f"{name} says\n\x1b[2J something"
        await service.moderation.review.add(Subject("acme", name), "0", "input", Finding(category, 0.5), text)
    listener = AdminListener(build_admin_app(service, ServerConfig()), service.metrics, "127.0.0.1", 0)
    await listener.start()
    yield f"http://127.0.0.1:{listener.port}"
    await listener.stop(0)


async def weft(url: str, *args: str) -> int:
    return await asyncio.to_thread(cli.main, ["reviews", "--url", url, *args])


async def test_what_waits_is_listed_read_and_decided(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weft(url, "list", "--category", "hate") == 0
    newest, other = capsys.readouterr().out.splitlines()
    assert "waiting" in newest
    assert "c says" in newest
    assert "a says" in other
    name = newest.split()[0]
    assert await weft(url, "show", name) == 0
    shown = capsys.readouterr().out
    assert "category: hate" in shown
    assert "\x1b" not in shown  # a text cannot steer the terminal
    assert await weft(url, "done", name, "wrong", "--note", "a quotation") == 0
    assert "  wrong  " in capsys.readouterr().out
    assert await weft(url, "list", "--done") == 0
    assert capsys.readouterr().out.split()[0] == name
    assert await weft(url, "list", "--all", "--limit", "2") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert await weft(url, "show", name) == 0
    assert "note: a quotation" in capsys.readouterr().out


async def test_a_record_that_is_not_there_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weft(url, "done", "rev_none", "right") == 1
    assert "there is no review 'rev_none' here" in capsys.readouterr().err

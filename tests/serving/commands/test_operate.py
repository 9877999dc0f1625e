"""`weft operate` against a real admin listener, over an engine that notes what it is asked."""

import asyncio

import pytest

from serving import cli
from serving.api.admin import build_admin_app
from serving.api.admin_listener import AdminListener
from serving.config import ServerConfig
from serving.engine.operation import LoadWeights, Pause, Sleep
from tests.serving.api.conftest import ApiMaker, chat_format, make_api, tokenizer

__all__ = ["chat_format", "make_api", "tokenizer"]  # fixtures


async def test_each_verb_is_asked_of_the_server_and_its_report_is_printed(
    make_api: ApiMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    api = make_api(make_api.says("x"))
    listener = AdminListener(build_admin_app(api.service, ServerConfig()), api.service.metrics, "127.0.0.1", 0)
    await listener.start()
    where = ["operate", "--url", f"http://127.0.0.1:{listener.port}"]

    async def weft(*args: str) -> int:
        return await asyncio.to_thread(cli.main, [*where, *args])

    try:
        assert await weft("pause") == 0
        assert "state paused" in capsys.readouterr().out
        assert await weft("sleep", "--weights", "none") == 0
        assert await weft("weights", "new") == 0
        assert api.engine.operations == [Pause(), Sleep(weights="none"), LoadWeights(checkpoint="new")]
        assert await weft("state") == 0
        assert capsys.readouterr().out.splitlines()[-1] == "state running"
    finally:
        await listener.stop(0)
    assert await weft("pause") == 1
    assert "no server can be reached" in capsys.readouterr().err

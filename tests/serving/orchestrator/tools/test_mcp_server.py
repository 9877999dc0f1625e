import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from serving.errors import ConfigError
from serving.orchestrator.tools.mcp_server import McpServer
from serving.orchestrator.tools.registry import ToolRegistry, ToolResult, ToolScope
from serving.settings.tools import McpServerConfig
from tests.fakes import mcp_server
from tests.fakes.mcp_server import failing_server

FAILING = McpServerConfig(
    command=(sys.executable, str(Path(mcp_server.__file__))), environment=("WEFT_TEST_SEEN",), connect_seconds=240
)
CLOCK = McpServerConfig(
    command=(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"), connect_seconds=240
)


@contextlib.asynccontextmanager
async def connected(config: McpServerConfig, label: str = "srv") -> AsyncIterator[tuple[McpServer, ToolRegistry]]:
    registry = ToolRegistry()
    server = McpServer(label, config, registry)
    keeping = asyncio.create_task(server.run())
    try:
        await asyncio.wait_for(server.ready.wait(), 240)
        yield server, registry
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def called(registry: ToolRegistry, tool: str, /, **arguments: object) -> ToolResult:
    scope = ToolScope(tenant="t", user="u", request_id="r", deadline=time.monotonic() + 3600)
    return await registry.run(tool, json.dumps(arguments), scope)


@contextlib.asynccontextmanager
async def over_http(port: int = 0, *, json_response: bool = False) -> AsyncIterator[int]:
    """The server in this process, at a port."""
    listener = socket.create_server(("127.0.0.1", port))
    app = failing_server(json_response=json_response).streamable_http_app()
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def test_a_server_that_others_wrote_works_over_stdio() -> None:
    async with connected(CLOCK, "time") as (_, registry):
        assert set(registry.group("mcp:time")) == {"time__get_current_time", "time__convert_time"}
        result = await called(
            registry, "time__convert_time", source_timezone="Asia/Tokyo", time="12:00", target_timezone="UTC"
        )
        assert not result.is_error
        assert json.loads(result.text)["target"]["datetime"].split("T")[1].startswith("03:00")
        wrong = await called(registry, "time__convert_time", source_timezone="Asia/Tokyo", time=12)
        assert wrong.is_error, "the arguments are checked before the server sees them"


async def test_calls_their_errors_and_what_is_no_text_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TEST_SEEN", "seen")
    monkeypatch.setenv("WEFT_TEST_SECRET", "secret")
    async with connected(FAILING) as (_, registry):
        assert (await called(registry, "srv__add", a=2, b=3)).text == "5"
        refused = await called(registry, "srv__refuse")
        assert refused.is_error
        assert "not today" in refused.text
        assert (await called(registry, "srv__picture")).text == "[image/png, which is not shown]"
        assert (await called(registry, "srv__weigh")).text == '{"weight": 21.5, "unit": "µg"}'
        assert (await called(registry, "srv__variable", name="WEFT_TEST_SEEN")).text == "seen"
        assert (await called(registry, "srv__variable", name="WEFT_TEST_SECRET")).text == "not set"
        # It dies in a call: that call says so, and the next has a new process.
        died = await called(registry, "srv__die")
        assert died.is_error
        assert "the MCP server srv is away now" in died.text
        assert (await called(registry, "srv__add", a=4, b=5)).text == "9"


async def test_a_server_over_http_that_restarts_is_connected_again() -> None:
    async with contextlib.AsyncExitStack() as serving:
        port = await serving.enter_async_context(over_http())
        config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", connect_seconds=240)
        async with connected(config) as (_, registry):
            assert (await called(registry, "srv__add", a=2, b=3)).text == "5"
            results = await asyncio.gather(*(called(registry, "srv__add", a=n, b=n) for n in range(8)))
            assert [result.text for result in results] == [str(2 * n) for n in range(8)]
            await serving.aclose()
            async with over_http(port):
                assert (await called(registry, "srv__add", a=4, b=5)).text == "9"


@pytest.mark.parametrize("json_response", [False, True], ids=["events", "json"])
async def test_an_answer_over_http_that_is_too_large_is_that_calls_error_and_the_connection_stays(
    json_response: bool,
) -> None:
    async with over_http(json_response=json_response) as port:
        config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", max_bytes=100_000, connect_seconds=240)
        async with connected(config) as (server, registry):
            first = server._connection
            result = await called(registry, "srv__talk", characters=1_000_000)
            assert result.is_error
            assert "is too large: a message has more than the 100000 bytes" in result.text
            assert len((await called(registry, "srv__talk", characters=90_000)).text) == 90_000
            assert server._connection is first


async def test_a_list_of_tools_that_changes_is_read_again() -> None:
    async with over_http() as port, connected(McpServerConfig(url=f"http://127.0.0.1:{port}/mcp")) as (_, registry):
        assert "srv__grown" not in registry.group("mcp:srv")
        await called(registry, "srv__grow")
        while "srv__grown" not in registry.group("mcp:srv"):
            await asyncio.sleep(0.01)
        assert (await called(registry, "srv__grown")).text == "new"


async def test_a_server_that_does_not_answer_what_its_new_tools_are_is_connected_again() -> None:
    async with over_http() as port:
        config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", connect_seconds=2)
        async with asyncio.timeout(240), connected(config) as (server, registry):
            first = server._connection
            assert (await called(registry, "srv__mute")).text == "muted"
            while server._connection in (first, None):
                await asyncio.sleep(0.01)
            assert (await called(registry, "srv__add", a=2, b=3)).text == "5"


async def test_only_the_tools_that_are_named_are_offered_and_a_call_without_an_answer_ends() -> None:
    async with over_http() as port:
        config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", tools=("add", "wait_for_ever"), seconds=0.5)
        async with connected(config) as (_, registry):
            assert registry.group("mcp:srv") == ("srv__add", "srv__wait_for_ever")
            result = await called(registry, "srv__wait_for_ever")
            assert result.is_error
            assert "longer than" in result.text or "Timed out" in result.text


async def test_a_server_that_cannot_be_reached_is_away_and_nothing_more() -> None:
    registry = ToolRegistry()
    server = McpServer("none", McpServerConfig(command=("/nonexistent/weft-test",), connect_seconds=0.1), registry)
    keeping = asyncio.create_task(server.run())
    await asyncio.sleep(0)
    assert registry.group("mcp:none") == ()
    assert not keeping.done()
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


def test_a_variable_that_is_not_set_is_found_when_the_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_TEST_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="WEFT_TEST_TOKEN"):
        McpServer("x", McpServerConfig(url="http://localhost/mcp", token_variable="WEFT_TEST_TOKEN"), ToolRegistry())

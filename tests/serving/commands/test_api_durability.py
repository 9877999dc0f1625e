"""API processes that are killed and replaced while they stream: the reader who comes back misses nothing."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.child_process import ChildProcess
from serving.engine.server import EngineServer
from serving.lifeline import Status
from tests.fakes.byte_checkpoint import write_byte_checkpoint
from tests.fakes.mortal_engine import MortalEngine, token_at
from tests.fakes.redis_server import RedisServer

PATIENCE = 300.0  # seconds; only a broken test waits that long
EVENTS_TO_PAUSE = 20
BODY: dict[str, Any] = {
    "prompt": [1, 2, 3],
    "max_tokens": 60,
    "seed": 7,
    "n": 2,
    "stream": True,
    "durable": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}


class Api:
    """One API process."""

    def __init__(self, child: ChildProcess, url: str, lines: list[str]) -> None:
        self.child = child
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE)
        self.lines = lines

    async def whole(self, stream_id: str, after: int = 0) -> list[str]:
        reply = await self.http.get(f"/v1/streams/{stream_id}", headers={"last-event-id": f"{stream_id}:{after}"})
        assert reply.status_code == 200, reply.text
        return reply.text.split("\n\n")


class Deployment:
    """Processes over one engine and one log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = MortalEngine(max_model_len=1024, pause=asyncio.Event())
        self.apis: list[Api] = []

    def run_engine(self, *, events: int | None = None) -> None:
        """For so many more events, then it pauses: far enough for the test to be in the middle of a stream, however
        slowly it reads. None: to the end."""
        assert self.engine.pause is not None
        self.engine.events_to_pause = events
        self.engine.pause.set()

    async def api(self, log: str, *flags: str) -> Api:
        statuses: asyncio.Queue[Status] = asyncio.Queue()
        lines: list[str] = []
        file = self.folder / "deployment.toml"
        file.write_text(f'name = "bytes"\n[model]\ncheckpoint = "tiny"\n[server]\nport = 0\n[streams]\n{log}\n')
        command = [sys.executable, "-m", "serving", "api", str(file), f"--socket={self.socket}", *flags]
        child = await ChildProcess.start(command, lines.append, statuses.put_nowait)
        waits = {asyncio.ensure_future(statuses.get()), asyncio.ensure_future(child.wait())}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        status = done.pop().result()
        assert isinstance(status, Status), lines
        self.apis.append(Api(child, status.url, lines))
        return self.apis[-1]

    @property
    def socket(self) -> Path:
        return self.folder / "private" / "engine.sock"


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    write_byte_checkpoint(tmp_path / "tiny")
    made = Deployment(tmp_path)
    server = EngineServer(made.engine, made.socket)
    await server.start()
    yield made
    for api in made.apis:
        api.child.kill()
        await api.child.wait()
        await api.http.aclose()
    await server.stop()


async def until_ready(api: Api) -> None:
    while (await api.http.get("/health/ready")).status_code != 200:
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def reading(api: Api) -> AsyncIterator[tuple[str, AsyncIterator[str]]]:
    """A stream that was begun: its id, and its events as they come."""
    async with api.http.stream("POST", "/v1/completions", json=BODY) as reply:
        assert reply.status_code == 200, await reply.aread()
        yield reply.headers["x-weft-stream-id"], _events(reply)


async def _events(reply: httpx.Response) -> AsyncIterator[str]:
    text = ""
    async for piece in reply.aiter_text():
        *events, text = (text + piece).split("\n\n")
        for event in events:
            if not event.startswith(":"):
                yield event


def check_tokens(events: list[str], engine: MortalEngine) -> None:
    """Every token of both choices, once and in order."""
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.split("data: ", 1)[1]) for event in events[:-2]]
    assert [event.split("\n")[0].rsplit(":", 1)[1] for event in events[:-2]] == [
        str(number) for number in range(1, len(chunks) + 1)
    ]
    for request in engine.requests[:2]:
        index = int(request.request_id.rsplit("-", 1)[1])
        found = [
            token
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index
            for token in choice["token_ids"]
        ]
        assert found == [token_at(request, position) for position in range(BODY["max_tokens"])]
    assert chunks[-1]["usage"]["completion_tokens"] == 2 * BODY["max_tokens"]


async def test_a_killed_api_process_costs_a_durable_stream_nothing(deployment: Deployment) -> None:
    log = 'log = "sqlite"\npath = "streams.sqlite"'
    async with asyncio.timeout(PATIENCE):
        first = await deployment.api(log)
        await until_ready(first)
        deployment.run_engine(events=EVENTS_TO_PAUSE)
        seen: list[str] = []
        stream_id = ""
        with contextlib.suppress(httpx.TransportError):
            async with reading(first) as (stream_id, events):
                async for event in events:
                    seen.append(event)
                    if len(seen) == 9:
                        first.child.kill()
        assert 9 <= len(seen) <= EVENTS_TO_PAUSE + 2
        deployment.run_engine()
        second = await deployment.api(log)
        rest = await second.whole(stream_id, after=len(seen))
        whole = await second.whole(stream_id)
    assert whole == seen + rest
    check_tokens(whole, deployment.engine)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_drained_process_refuses_and_hands_over_and_another_goes_on(
    deployment: Deployment, kind: str, mortal_redis: RedisServer
) -> None:
    log = f'log = "redis"\nredis = "{mortal_redis.url}"' if kind == "redis" else 'log = "sqlite"\npath = "s.sqlite"'
    async with asyncio.timeout(PATIENCE):
        old, new = await asyncio.gather(deployment.api(log, "--drain-seconds=3"), deployment.api(log))
        await until_ready(old)
        deployment.run_engine(events=EVENTS_TO_PAUSE)
        seen: list[str] = []
        ready = refused = None
        async with reading(old) as (stream_id, events):
            async for event in events:
                seen.append(event)
                if len(seen) == 5:
                    old.child.terminate()
                    while (ready := await old.http.get("/health/ready")).status_code == 200:
                        continue
                    refused = await old.http.post("/v1/completions", json=BODY)
        assert await old.child.wait() == 0
        deployment.run_engine()
        rest = await new.whole(stream_id, after=len(seen) - 1)
        whole = await new.whole(stream_id)
    assert ready is not None
    assert refused is not None
    assert ready.json()["error"]["code"] == refused.json()["error"]["code"] == "server_draining"
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["connection"] == "close"
    assert json.loads(seen.pop().removeprefix("data: "))["error"]["code"] == "stream_moved"
    assert whole == seen + rest
    check_tokens(whole, deployment.engine)


async def test_what_can_end_within_the_drain_ends_there(deployment: Deployment) -> None:
    async with asyncio.timeout(PATIENCE):
        api = await deployment.api('log = "memory"', "--drain-seconds=1000")
        await until_ready(api)
        deployment.run_engine(events=EVENTS_TO_PAUSE)
        seen: list[str] = []
        async with reading(api) as (_, events):
            async for event in events:
                seen.append(event)
                if len(seen) == 5:
                    api.child.terminate()
                    while (await api.http.get("/health/ready")).status_code == 200:
                        continue
                    deployment.run_engine()
        assert await api.child.wait() == 0
    check_tokens([*seen, ""], deployment.engine)


async def test_a_second_signal_ends_it_at_once(deployment: Deployment) -> None:
    async with asyncio.timeout(PATIENCE):
        api = await deployment.api('log = "memory"', "--drain-seconds=100000")
        await until_ready(api)
        asked = asyncio.ensure_future(api.http.post("/v1/completions", json=BODY))
        while not deployment.engine.requests:
            await asyncio.sleep(0.01)
        api.child.terminate()
        while (await api.http.get("/health/ready")).status_code == 200:
            continue
        api.child.terminate()
        assert await api.child.wait() == 0
        with contextlib.suppress(httpx.TransportError):
            await asked

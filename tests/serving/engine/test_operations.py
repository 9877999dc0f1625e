"""Operations on an engine that runs, in its process and through every body that stands before it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.api.metered_engine import MeteredEngine
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.client import Engine
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.operation import EngineState, Pause, Resume
from serving.engine.remote import RemoteEngine
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from serving.engine.resume import ResumingEngine
from serving.engine.server import EngineServer
from serving.gateway.guard import GuardedEngine
from serving.observability.metrics import Metrics
from tests.fakes.held_steps import held_steps
from tests.fakes.tiny_model import VOCAB_SIZE, tiny_executor

PATIENCE = 180.0  # seconds; only a broken test waits that long


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[LocalEngine]:
    deployment = Deployment(name="tiny", model=ModelConfig(checkpoint=tmp_path), engine=EngineConfig())
    engine = start_local_engine(deployment, tiny_executor(), startup_seconds=0.0)
    yield engine
    await engine.close()


def request(name: str, max_tokens: int = 8, deadline_seconds: float | None = None) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=tuple(i % VOCAB_SIZE for i in range(20)),
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        deadline_seconds=deadline_seconds,
    )


async def events_of(engine: Engine, one: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(one)]


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


async def until_waiting(engine: Engine, streams: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (stats := await engine.stats()).running + stats.waiting < streams:
            await asyncio.sleep(0.01)


async def test_a_paused_engine_begins_no_step_and_goes_on_with_the_same_tokens(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tokens_of(await events_of(engine, request("alone", max_tokens=60)))
    asked = held_steps(monkeypatch)
    stream = engine.generate(request("open", max_tokens=60))
    begun = [await anext(stream)]
    report = await asked(engine, Pause())
    assert report.state == EngineState.PAUSED
    late = asyncio.create_task(events_of(engine, request("late")))
    await until_waiting(engine, 2)
    steps = (await engine.stats()).steps
    assert (await engine.operate(Pause())).open_streams == 2
    assert (await engine.stats()).steps == steps
    assert (await engine.stats()).state == EngineState.PAUSED
    assert (await engine.operate(Resume())).state == EngineState.RUNNING
    assert tokens_of(begun + [event async for event in stream]) == alone
    assert tokens_of(await late) == alone[:8]


async def test_a_deadline_ends_a_stream_that_waits_in_a_paused_engine(engine: LocalEngine) -> None:
    await engine.operate(Pause())
    async with asyncio.timeout(PATIENCE):
        events = await events_of(engine, request("short", deadline_seconds=0.05))
    assert [event.finish_reason for event in events] == [FinishReason.DEADLINE]


async def test_a_stream_that_leaves_a_paused_engine_is_forgotten(engine: LocalEngine) -> None:
    await engine.operate(Pause())
    left = asyncio.create_task(events_of(engine, request("leaves")))
    await until_waiting(engine, 1)
    left.cancel()
    assert (await engine.operate(Resume())).open_streams is not None
    async with asyncio.timeout(PATIENCE):
        while (stats := await engine.stats()).running + stats.waiting:
            await asyncio.sleep(0.01)


async def test_an_operation_passes_every_body_of_the_engine(engine: LocalEngine, tmp_path: Path) -> None:
    path = tmp_path / "run" / "engine.sock"
    path.parent.mkdir(mode=0o700)
    server = EngineServer(engine, path)
    await server.start()
    remote = RemoteEngine(path)
    outermost = GuardedEngine(MeteredEngine(ResumingEngine(remote), Metrics("tiny")), {})
    try:
        assert (await outermost.operate(Pause())).state == EngineState.PAUSED
        assert (await outermost.stats()).state == EngineState.PAUSED
        assert (await outermost.operate(Resume())).open_streams == 0
        assert (await engine.stats()).state == EngineState.RUNNING
    finally:
        await outermost.close()
        await server.stop()

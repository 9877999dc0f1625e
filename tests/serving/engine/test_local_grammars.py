"""A running engine and grammars: compiled beside its streams, refused without harm, and kept over a lost engine."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from serving.engine.client import EngineInfo, EngineStats
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.operation import EngineState
from serving.engine.remote import ENGINE_LOST
from serving.engine.request import FinishReason, GenerateRequest, GrammarKind, GrammarSpec, SamplingParams, TokenEvent
from serving.engine.resume import ResumingEngine
from serving.errors import EngineUnavailableError, OverloadedError, RequestError, UnsupportedError
from tests.fakes.tiny_model import tiny_executor
from tests.fakes.tiny_vocabulary import END, text_of, tiny_vocabulary
from tests.serving.engine.test_grammars import EXPLODING
from tests.serving.engine.test_local import deployment, request

SCHEMA = {"type": "array", "items": {"enum": ["yes", 12, None]}, "minItems": 3, "maxItems": 5}
GRAMMAR = GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA))
SAMPLING = SamplingParams(temperature=1.0, seed=3, max_tokens=150, eos_token_ids=(END,))


@pytest_asyncio.fixture
async def engine(tmp_path: object) -> AsyncIterator[LocalEngine]:
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), startup_seconds=1.0, vocabulary=tiny_vocabulary)
    yield engine
    await engine.close()


def bound(name: str, grammar: GrammarSpec = GRAMMAR, **sampling: Any) -> GenerateRequest:
    return dataclasses.replace(
        request(name),
        grammar=grammar,
        sampling=dataclasses.replace(SAMPLING, **sampling),
    )


async def tokens_of(engine: LocalEngine | ResumingEngine, one: GenerateRequest) -> list[int]:
    async with aclosing(engine.generate(one)) as events:
        return [token async for event in events for token in event.token_ids]


async def test_a_stream_under_a_grammar_says_what_matches_and_is_counted(engine: LocalEngine) -> None:
    for name in ("one", "two"):
        value = json.loads(text_of(await tokens_of(engine, bound(name))))
        assert 3 <= len(value) <= 5
        assert all(item in ("yes", 12, None) for item in value)
    stats = await engine.stats()
    assert (stats.grammar_queries, stats.grammar_hits, stats.grammar_refusals) == (2, 1, 0)
    assert stats.masks > 0
    assert stats.mask_seconds > 0
    assert stats.grammar_compile_seconds > 0


async def test_what_explodes_is_refused_while_others_say_what_they_would_have_said(engine: LocalEngine) -> None:
    alone = await tokens_of(engine, request("alone", max_tokens=60))
    bound_alone = await tokens_of(engine, bound("bound-alone"))
    refused = [asyncio.create_task(tokens_of(engine, bound(name, grammar))) for name, grammar in EXPLODING.items()]
    beside = await asyncio.gather(
        tokens_of(engine, request("beside", max_tokens=60)), tokens_of(engine, bound("bound-beside"))
    )
    assert beside == [alone, bound_alone]
    for error in await asyncio.gather(*refused, return_exceptions=True):
        assert isinstance(error, RequestError)
        assert error.param == "grammar"
    assert (await engine.stats()).running == 0


@pytest.mark.parametrize(
    ("param", "sampling"),
    [
        ("min_tokens", {"min_tokens": 2}),
        ("ignore_eos", {"eos_token_ids": ()}),
        ("allowed_token_ids", {"allowed_token_ids": (1,)}),
        ("bad_words", {"bad_words": ((5,),)}),
    ],
)
async def test_what_could_leave_nothing_to_draw_is_refused_by_name(
    engine: LocalEngine, param: str, sampling: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        await tokens_of(engine, bound("bad", **sampling))
    assert refusal.value.param == param


async def test_a_deadline_counts_while_a_grammar_is_compiled(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine._grammars is not None
    never = asyncio.Event()

    async def compile_for_ever(*_: object) -> None:
        await never.wait()

    monkeypatch.setattr(engine._grammars, "constraint", compile_for_ever)
    late = dataclasses.replace(bound("late"), deadline_seconds=0.01)
    assert [event.finish_reason async for event in engine.generate(late)] == [FinishReason.DEADLINE]


async def test_an_engine_put_to_sleep_while_a_grammar_is_compiled_takes_no_stream(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, compiled = asyncio.Event(), asyncio.Event()

    async def constraint(*_: object) -> None:
        compiling.set()
        await compiled.wait()

    assert engine._grammars is not None
    monkeypatch.setattr(engine._grammars, "constraint", constraint)
    late = asyncio.create_task(tokens_of(engine, bound("late")))
    await compiling.wait()
    engine._loop.state = EngineState.ASLEEP
    compiled.set()
    with pytest.raises(OverloadedError, match="sleeps"):
        await late


@pytest.mark.parametrize("failed", [False, True])
async def test_an_engine_that_ends_while_a_grammar_is_compiled_ends_its_stream(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    compiling, compiled = asyncio.Event(), asyncio.Event()

    async def constraint(*_: object) -> None:
        compiling.set()
        await compiled.wait()

    assert engine._grammars is not None
    monkeypatch.setattr(engine._grammars, "constraint", constraint)
    late = asyncio.create_task(tokens_of(engine, bound("late")))
    await compiling.wait()
    if failed:
        engine._fail(RuntimeError("the device is gone"))
    await engine.close()
    compiled.set()
    async with asyncio.timeout(60):
        with pytest.raises(EngineUnavailableError) as raised:
            await late
    assert raised.value.code == ("engine_failed" if failed else "engine_stopped")


async def test_an_engine_without_a_vocabulary_refuses_grammars(tmp_path: object) -> None:
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), startup_seconds=1.0)
    with pytest.raises(UnsupportedError, match="grammar"):
        await tokens_of(engine, bound("bad"))
    await engine.close()


class Dying:
    """Passes on an engine's streams, and loses each after so many events, until its lives are used up."""

    def __init__(self, inner: LocalEngine, events: int, lives: int) -> None:
        self._inner = inner
        self._events = events
        self.lives = lives

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        count = 0
        async with aclosing(self._inner.generate(request)) as events:
            async for event in events:
                yield event
                count += 1
                if self.lives and count == self._events and event.finish_reason is None:
                    self.lives -= 1
                    raise EngineUnavailableError("killed", code=ENGINE_LOST)

    async def info(self) -> EngineInfo:
        return await self._inner.info()

    async def stats(self) -> EngineStats:
        return await self._inner.stats()

    async def close(self) -> None: ...


async def test_a_stream_whose_engine_is_killed_goes_on_under_its_grammar(engine: LocalEngine) -> None:
    whole = await tokens_of(engine, bound("whole"))
    dying = Dying(engine, events=4, lives=3)

    async def no_wait(_: float) -> None: ...

    resuming = ResumingEngine(dying, sleep=no_wait)
    assert await tokens_of(resuming, bound("killed")) == whole
    assert dying.lives == 0


async def test_a_client_that_leaves_while_its_grammar_compiles_leaves_nothing_behind(engine: LocalEngine) -> None:
    leaving = asyncio.create_task(tokens_of(engine, bound("leaving")))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    end = [event async for event in engine.generate(bound("staying"))][-1]
    assert end.finish_reason is FinishReason.STOP
    assert (await engine.stats()).running == 0

"""Streams over an engine that dies."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from serving.engine.client import Engine
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from serving.engine.resume import ResumePolicy, ResumingEngine
from serving.errors import EngineError, EngineUnavailableError, OverloadedError, RequestError
from tests.fakes.mortal_engine import MortalEngine, token_at


def request(max_tokens: int = 12, output: tuple[int, ...] = (), **sampling: object) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        prompt_token_ids=(1, 2, 3),
        sampling=dataclasses.replace(SamplingParams(max_tokens=max_tokens, seed=7), **sampling),  # pyright: ignore
        output_token_ids=output,
    )


async def read(engine: Engine, wanted: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(wanted)]


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


class Clock:
    """Time that passes only by sleeping; `on_sleep` is what happens meanwhile."""

    def __init__(self, on_sleep: Callable[[float], None] = lambda _: None) -> None:
        self.time = 0.0
        self.sleeps: list[float] = []
        self.on_sleep = on_sleep

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        self.on_sleep(self.time)
        await asyncio.sleep(0)


UNLIMITED = 10**6  # losses


def resuming(inner: Engine, clock: Clock, policy: ResumePolicy | None = None) -> ResumingEngine:
    sleep: Callable[[float], Awaitable[None]] = clock.sleep
    return ResumingEngine(inner, policy, jitter=lambda: 1.0, sleep=sleep, now=clock.now)


@pytest.mark.parametrize("block", range(4))
async def test_a_stream_over_many_deaths_is_the_unbroken_stream(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        rng = random.Random(seed)
        wanted = request(
            max_tokens=rng.randint(1, 40),
            seed=seed,
            min_tokens=rng.choice((0, 5)),
            eos_token_ids=tuple(rng.sample(range(50), rng.choice((0, 2)))),
            stop_token_ids=tuple(rng.sample(range(50), rng.choice((0, 2)))),
            logprobs=rng.choice((None, 0)),
            prompt_logprobs=rng.choice((None, 0)),
        )
        unbroken = await read(MortalEngine(), wanted)

        inner = MortalEngine(chunk=lambda rng=rng: rng.randint(1, 3), life=rng.randint(0, 6))

        def maybe_revive(_: float, inner: MortalEngine = inner, rng: random.Random = rng) -> None:
            if rng.random() < 0.5:
                inner.revive(life=rng.randint(0, 6))

        events = await read(resuming(inner, Clock(maybe_revive), ResumePolicy(max_losses=UNLIMITED)), wanted)

        assert tokens(events) == tokens(unbroken), seed
        assert [e.finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
        assert (events[-1].finish_reason, events[-1].stop_token_id) == (
            unbroken[-1].finish_reason,
            unbroken[-1].stop_token_id,
        )
        assert {e.request_id for e in events} == {"r"}
        assert [p for e in events for p in e.logprobs] == [p for e in unbroken for p in e.logprobs]
        assert [e.prompt_logprobs for e in events if e.prompt_logprobs] == [
            e.prompt_logprobs for e in unbroken if e.prompt_logprobs
        ]
        assert [e.cached_tokens for e in events if e.cached_tokens is not None] == [0]
        assert [e.queue_seconds for e in events if e.queue_seconds is not None] == [0.0]
        ids = [r.request_id for r in inner.requests]
        assert len(ids) == len(set(ids))


async def test_the_continuation_carries_earlier_output_and_what_was_delivered_since() -> None:
    inner = MortalEngine(life=2)
    wanted = request(max_tokens=6, output=(9,))
    events = await read(resuming(inner, Clock(lambda _: inner.revive())), wanted)
    delivered = tuple(token_at(wanted, position) for position in (1, 2))
    assert inner.requests[1].output_token_ids == (9, *delivered)
    assert len(tokens(events)) == 5


async def test_a_request_that_no_engine_accepted_fails_at_once() -> None:
    inner = MortalEngine(alive=False)
    clock = Clock()
    with pytest.raises(EngineUnavailableError):
        await read(resuming(inner, clock), request())
    assert clock.sleeps == []


async def test_a_stream_lost_before_its_first_token_continues() -> None:
    inner = MortalEngine(life=0)
    events = await read(resuming(inner, Clock(lambda _: inner.revive())), request(max_tokens=3))
    assert len(tokens(events)) == 3
    assert events[0].cached_tokens == 0


async def test_waits_grow_to_the_longest_and_end_at_the_deadline() -> None:
    inner = MortalEngine(life=1)
    clock = Clock()
    policy = ResumePolicy(deadline_seconds=10.0, first_wait_seconds=0.5, longest_wait_seconds=4.0)
    with pytest.raises(EngineUnavailableError, match="did not come back within 10 s"):
        await read(resuming(inner, clock, policy), request())
    assert clock.sleeps == [0.5, 1.0, 2.0, 4.0, 2.5]


async def test_an_engine_that_dies_before_every_token_does_not_renew_the_deadline() -> None:
    inner = MortalEngine(life=1)
    clock = Clock(lambda _: inner.revive(life=0))
    policy = ResumePolicy(deadline_seconds=10.0, max_losses=UNLIMITED)
    with pytest.raises(EngineUnavailableError):
        await read(resuming(inner, clock, policy), request())
    assert clock.time == pytest.approx(10.0)


async def test_progress_renews_the_deadline() -> None:
    inner = MortalEngine(life=1)
    clock = Clock(lambda time: inner.revive(life=1) if round(time) % 8 == 0 else None)
    policy = ResumePolicy(deadline_seconds=10.0, first_wait_seconds=1.0, longest_wait_seconds=1.0)
    events = await read(resuming(inner, clock, policy), request(max_tokens=5))
    assert len(tokens(events)) == 5
    assert clock.time > 10.0


@pytest.mark.parametrize("life", [0, 1, 3])  # events that each next engine lives for
async def test_a_stream_that_loses_engine_after_engine_ends_however_far_it_got(life: int) -> None:
    inner = MortalEngine(life=life)
    stream = resuming(inner, Clock(lambda _: inner.revive(life=life))).generate(request(max_tokens=100))
    got: list[TokenEvent] = []

    async def read_on() -> None:
        async for event in stream:
            got.append(event)

    with pytest.raises(EngineError, match="lost 5 times") as caught:
        await read_on()
    assert caught.value.code == "engine_lost_repeatedly"
    assert len(inner.requests) == 5
    assert len(tokens(got)) == 5 * life


async def test_waiting_for_one_engine_counts_as_one_loss() -> None:
    inner = MortalEngine(life=1)
    clock = Clock(lambda time: inner.revive() if time > 60 else None)
    events = await read(resuming(inner, clock, ResumePolicy(max_losses=2)), request(max_tokens=4))
    assert len(tokens(events)) == 4


class Lossy(MortalEngine):
    """Delivers everything but the last event, then dies; it refuses whatever is over."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        assert not request.output_token_ids, "nothing was left to generate"
        async for event in super().generate(request):
            if event.finish_reason is not None:
                yield dataclasses.replace(event, finish_reason=None, stop_token_id=None)
                self.kill()
                raise EngineUnavailableError("died", code="engine_lost")
            yield event


@pytest.mark.parametrize("case", ["max_tokens", "window", "eos", "stop"])
async def test_a_stream_that_lost_only_its_end_is_ended_here(case: str) -> None:
    third = (token_at(request(), 2),)
    wanted = request(
        max_tokens=5,
        eos_token_ids=third if case == "eos" else (),
        stop_token_ids=third if case == "stop" else (),
    )
    inner = Lossy(max_model_len=6 if case == "window" else 4096)
    events = await read(resuming(inner, Clock(lambda _: inner.revive())), wanted)
    last = events[-1]
    assert last.token_ids == ()
    assert last.finish_reason is (FinishReason.STOP if case in ("eos", "stop") else FinishReason.LENGTH)
    assert last.stop_token_id == (token_at(request(), 2) if case == "stop" else None)


@pytest.mark.parametrize("prompt", [(1, 2, 3), (1,) * 6])
async def test_a_prompt_that_was_only_to_be_scored_is_scored_by_the_next_engine(prompt: tuple[int, ...]) -> None:
    wanted = dataclasses.replace(request(max_tokens=0, prompt_logprobs=0), prompt_token_ids=prompt)
    inner = MortalEngine(life=0, max_model_len=6)
    (event,) = await read(resuming(inner, Clock(lambda _: inner.revive())), wanted)
    assert len(event.prompt_logprobs) == len(prompt) - 1
    assert (event.token_ids, event.finish_reason) == ((), FinishReason.LENGTH)
    assert [each.sampling.prompt_logprobs for each in inner.requests] == [0, 0]


class Full(MortalEngine):
    """Refuses the first continuation: its queue is full just after the start."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        if len(self.requests) == 1:
            self.requests.append(request)
            raise OverloadedError("full", retry_after=1.0)
        async for event in super().generate(request):
            yield event


async def test_a_continuation_waits_for_a_full_queue() -> None:
    inner = Full(life=1)
    events = await read(resuming(inner, Clock(lambda _: inner.revive())), request(max_tokens=4))
    assert len(tokens(events)) == 4
    assert len(inner.requests) == 3


class Refusing(MortalEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        raise RequestError("no", param="seed")
        yield  # pyright: ignore[reportUnreachable]


async def test_the_engines_refusals_pass_through() -> None:
    with pytest.raises(RequestError) as caught:
        await read(resuming(Refusing(), Clock()), request())
    assert caught.value.param == "seed"


async def test_closing_the_stream_closes_the_inner_one() -> None:
    inner = MortalEngine()
    stream = resuming(inner, Clock()).generate(request())
    await anext(stream)
    assert inner.open == {"r"}
    await stream.aclose()
    assert inner.open == set()


async def test_a_resumed_stream_has_what_is_left_of_its_deadline() -> None:
    inner = MortalEngine(life=2)
    clock = Clock(lambda time: inner.revive() if time >= 3 else None)
    wanted = dataclasses.replace(request(), deadline_seconds=10.0)
    await read(resuming(inner, clock, ResumePolicy(first_wait_seconds=1.0)), wanted)
    assert [submitted.deadline_seconds for submitted in inner.requests] == [10.0, 7.0]


async def test_a_stream_whose_deadline_passes_while_the_engine_is_away_ends_then() -> None:
    inner = MortalEngine(life=2)
    clock = Clock()
    wanted = dataclasses.replace(request(), deadline_seconds=5.0)
    events = await read(resuming(inner, clock, ResumePolicy(first_wait_seconds=1.0)), wanted)
    assert len(tokens(events)) == 2
    assert events[-1] == TokenEvent(request_id="r", finish_reason=FinishReason.DEADLINE)
    assert clock.time == 5.0

"""The engine on its thread: streams end once, refusals reach their caller, abort and failure free everything."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.embedding import EmbedRequest, TextFacts
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.pin_messages import ListPins, PinPrefix, UnpinPrefix
from serving.engine.plan import StepPlan, StepResult
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from serving.engine.watchdog import StepWatchdog
from serving.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    NotFoundError,
    OverloadedError,
    RequestError,
)
from tests.fakes.tiny_model import LIMITS, MAX_MODEL_LEN, VOCAB_SIZE, tiny_executor


def deployment(tmp_path: object, **engine: int) -> Deployment:
    return Deployment(name="tiny", model=ModelConfig(checkpoint=tmp_path), engine=EngineConfig(**engine))  # type: ignore[arg-type]


@pytest.fixture
async def engine(tmp_path: object) -> AsyncIterator[LocalEngine]:
    engine = start_local_engine(deployment(tmp_path, max_waiting=8), tiny_executor(), startup_seconds=1.0)
    yield engine
    await engine.close()


def request(name: str = "one", length: int = 10, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(
        request_id=name, prompt_token_ids=tuple(i % VOCAB_SIZE for i in range(length)), sampling=params
    )


async def events_of(engine: LocalEngine, one: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(one)]


async def test_a_stream_has_its_tokens_and_one_end(engine: LocalEngine) -> None:
    events = await events_of(engine, request())
    assert sum(len(event.token_ids) for event in events) == 8
    assert [event.finish_reason for event in events if event.finish_reason] == [FinishReason.LENGTH]
    assert events[-1].finish_reason is not None
    assert events[0].cached_tokens == 0


async def test_many_streams_at_once_do_not_mix(engine: LocalEngine) -> None:
    alone = {i: await events_of(engine, request(f"alone-{i}", 5 + i)) for i in range(6)}
    together = await asyncio.gather(*[events_of(engine, request(f"many-{i}", 5 + i)) for i in range(6)])
    for i, events in enumerate(together):
        # How many tokens an event has depends on who else there was, and on how long steps take.
        assert [token for e in events for token in e.token_ids] == [token for e in alone[i] for token in e.token_ids]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request(length=0), RequestError),
        (request(length=MAX_MODEL_LEN + 1), ContextLengthError),
        (dataclasses.replace(request(), prompt_token_ids=(VOCAB_SIZE,)), RequestError),
        (dataclasses.replace(request(), prompt_token_ids=(-1,)), RequestError),
    ],
)
async def test_a_refused_request_raises_and_costs_the_others_nothing(
    engine: LocalEngine, bad: GenerateRequest, error: type[Exception]
) -> None:
    good = asyncio.create_task(events_of(engine, request("good")))
    with pytest.raises(error):
        await events_of(engine, bad)
    assert sum(len(event.token_ids) for event in await good) == 8


OUTSIDE = VOCAB_SIZE


@pytest.mark.parametrize(
    ("param", "sampling"),
    [
        ("eos_token_ids", {"eos_token_ids": tuple(range(17)), "min_tokens": 1}),
        ("eos_token_ids", {"eos_token_ids": (2**40,), "min_tokens": 1}),
        ("stop_token_ids", {"stop_token_ids": tuple(range(33)), "min_tokens": 1}),
        ("stop_token_ids", {"stop_token_ids": (2**40,), "min_tokens": 1}),
        ("logit_bias", {"logit_bias": tuple((i % VOCAB_SIZE, 1.0) for i in range(301))}),
        ("logit_bias", {"logit_bias": ((2**40, 1.0),)}),
        ("allowed_token_ids", {"allowed_token_ids": (OUTSIDE,)}),
        ("allowed_token_ids", {"allowed_token_ids": (-1,)}),
        ("bad_words", {"bad_words": tuple((i,) for i in range(65))}),
        ("bad_words", {"bad_words": ((1,) * 9,)}),
        ("bad_words", {"bad_words": ((),)}),
        ("bad_words", {"bad_words": ((2**40,),)}),
        ("min_tokens", {"eos_token_ids": (1,), "min_tokens": 2**31}),
        ("min_tokens", {"min_tokens": -1}),
        ("top_k", {"temperature": 1.0, "top_k": 2**32}),
        ("top_k", {"temperature": 1.0, "top_k": -1}),
        ("seed", {"temperature": 1.0, "seed": 2**64}),
        ("seed", {"temperature": 1.0, "seed": -1}),
        ("logprobs", {"logprobs": 21}),
        ("prompt_logprobs", {"prompt_logprobs": -1}),
    ],
)
async def test_what_a_step_would_raise_for_is_refused_and_the_engine_lives(
    engine: LocalEngine, param: str, sampling: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refusal:
        await events_of(engine, request("bad", **sampling))
    assert refusal.value.param == param
    assert sum(len(event.token_ids) for event in await events_of(engine, request("good"))) == 8


async def test_a_refusal_whose_caller_has_gone_with_its_event_loop_costs_nobody_anything(engine: LocalEngine) -> None:
    asked, gone = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        assert gone.wait(60)

    async def ask_and_leave() -> None:
        asking = asyncio.create_task(events_of(engine, request("late", length=MAX_MODEL_LEN + 1)))
        await asyncio.sleep(0)  # it is sent now, and the engine is held
        asking.cancel()

    held = asyncio.create_task(engine.between_steps(hold))
    await asyncio.to_thread(asked.wait)
    await asyncio.to_thread(lambda: asyncio.run(ask_and_leave()))
    gone.set()
    await held
    assert (await events_of(engine, request("after")))[-1].finish_reason == FinishReason.LENGTH


async def test_a_refused_stream_that_is_left_takes_nothing_from_the_one_whose_name_it_had(engine: LocalEngine) -> None:
    asked, let = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        assert let.wait(60)

    held = asyncio.create_task(engine.between_steps(hold))
    await asyncio.to_thread(asked.wait)
    first, second = (asyncio.create_task(events_of(engine, request("same"))) for _ in range(2))
    await asyncio.sleep(0)  # both are sent now, and the engine is held
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    let.set()
    await held
    async with asyncio.timeout(60):
        assert sum(len(event.token_ids) for event in await first) == 8


async def test_a_row_filled_to_every_limit_is_served(engine: LocalEngine) -> None:
    full = request(
        "full",
        logit_bias=tuple((i % VOCAB_SIZE, 0.5) for i in range(300)),
        bad_words=tuple((*range(7), i) for i in range(64)),
        eos_token_ids=tuple(range(16)),
        stop_token_ids=tuple(range(16, 48)),
        allowed_token_ids=tuple(range(48, VOCAB_SIZE)),
        min_tokens=8,
        temperature=1.0,
        top_k=2**31 - 1,
        seed=2**63 - 1,
        logprobs=20,
        prompt_logprobs=20,
    )
    assert sum(len(event.token_ids) for event in await events_of(engine, full)) == 8


async def test_leaving_a_stream_frees_its_pages(engine: LocalEngine) -> None:
    stream = engine.generate(request("left", max_tokens=200))
    await anext(stream)
    await stream.aclose()
    await events_of(engine, request("after"))
    stats = await engine.stats()
    assert (stats.running, stats.used_pages) == (0, 0)


async def test_a_full_queue_refuses_with_a_time_to_retry(engine: LocalEngine) -> None:
    tasks = [asyncio.create_task(events_of(engine, request(f"r{i}", max_tokens=100))) for i in range(60)]
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, OverloadedError)]
    assert refused
    assert all(error.retry_after > 0 for error in refused)
    assert all(isinstance(end, list) for end in ends if not isinstance(end, OverloadedError))


async def test_a_failing_device_ends_every_stream_and_tells_its_owner(tmp_path: object) -> None:
    class Failing:
        limits, vocab_size, programs_compiled = LIMITS, VOCAB_SIZE, 0

        def dispatch(self, plan: StepPlan) -> "Failing":
            return self

        def collect(self) -> StepResult:
            raise RuntimeError("the device is gone")

    told: list[BaseException] = []
    engine = start_local_engine(deployment(tmp_path), Failing(), startup_seconds=0.0, on_failure=told.append)
    ends = await asyncio.gather(*[events_of(engine, request(f"r{i}")) for i in range(3)], return_exceptions=True)
    assert all(isinstance(end, EngineUnavailableError) for end in ends)
    with pytest.raises(EngineUnavailableError):
        await engine.stats()
    await engine.close()  # the streams hear of it first
    assert [str(error) for error in told] == ["the device is gone"]
    sizes = engine.post_mortem()
    assert sizes["step_tokens"] >= sizes["step_ranges"] >= 1


class Hanging:
    """A device whose step never ends, until it is let go."""

    limits, vocab_size, programs_compiled = LIMITS, VOCAB_SIZE, 0

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def dispatch(self, plan: StepPlan) -> "Hanging":
        return self

    def collect(self) -> StepResult:
        self.begun.set()
        self.let_go.wait()
        raise RuntimeError("too late")


async def test_a_step_that_hangs_is_not_ready_and_then_a_failure_that_ends_streams(tmp_path: object) -> None:
    device, time, told = Hanging(), [0.0], []
    failed = threading.Event()

    def on_failure(error: BaseException) -> None:
        told.append(error)
        failed.set()

    watchdog = StepWatchdog(120.0, check_seconds=0.001, now=lambda: time[0])
    engine = start_local_engine(deployment(tmp_path), device, 0.0, on_failure, watchdog)
    stream = asyncio.create_task(events_of(engine, request()))
    await asyncio.to_thread(device.begun.wait)
    time[0] = 119.0
    assert (await engine.stats()).ready
    time[0] = 121.0
    await asyncio.to_thread(failed.wait)
    with pytest.raises(EngineUnavailableError):
        await stream
    with pytest.raises(EngineUnavailableError):
        await engine.stats()
    await engine.close()  # does not wait for the device
    device.let_go.set()
    assert [type(error) for error in told] == [EngineError]
    assert "longer than 120 s" in str(told[0])


async def test_stats_say_not_ready_while_a_step_is_overdue(tmp_path: object) -> None:
    device, time = Hanging(), [0.0]
    watchdog = StepWatchdog(5.0, check_seconds=3600.0, now=lambda: time[0])  # it gives up later than the test asks
    engine = start_local_engine(deployment(tmp_path), device, 0.0, watchdog=watchdog)
    stream = asyncio.create_task(events_of(engine, request()))
    await asyncio.to_thread(device.begun.wait)
    time[0] = 5.5
    assert not (await engine.stats()).ready
    device.let_go.set()
    with pytest.raises(EngineUnavailableError):
        await stream


async def test_an_idle_engine_is_never_overdue(tmp_path: object) -> None:
    time = [0.0]
    watchdog = StepWatchdog(5.0, check_seconds=0.001, now=lambda: time[0])
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), 0.0, watchdog=watchdog)
    await events_of(engine, request("before"))
    time[0] = 1e6
    assert (await engine.stats()).ready
    await events_of(engine, request("after"))
    await engine.close()


async def test_a_closed_engine_refuses(tmp_path: object) -> None:
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), startup_seconds=0.0)
    await engine.close()
    with pytest.raises(EngineUnavailableError):
        await events_of(engine, request())


async def test_a_stream_whose_deadline_passes_ends_with_that_reason(engine: LocalEngine) -> None:
    late = dataclasses.replace(request("late", max_tokens=200), deadline_seconds=1e-6)
    on_time = dataclasses.replace(request("on time"), deadline_seconds=1e6)
    ends = [
        events[-1].finish_reason for events in await asyncio.gather(events_of(engine, late), events_of(engine, on_time))
    ]
    assert ends == [FinishReason.DEADLINE, FinishReason.LENGTH]
    stats = await engine.stats()
    assert stats.deadline_drops + stats.deadline_stops == 1


def pin(name: str, token_ids: tuple[int, ...], owner: str = "") -> PinPrefix:
    return PinPrefix(name=name, owner=owner, token_ids=token_ids, salt="", seconds=60.0, most=2)


async def test_a_prefix_is_pinned_between_two_steps_and_held_once_it_is_computed(engine: LocalEngine) -> None:
    prompt = request(length=40).prompt_token_ids
    (pinned,) = (await engine.operate(pin("system", prompt))).pins or ()
    assert (pinned.pages, pinned.held, pinned.seconds) == (5, 0, 60.0)
    await events_of(engine, request(length=40))
    (pinned,) = (await engine.operate(ListPins(owner=""))).pins or ()
    assert (pinned.name, pinned.pages, pinned.held) == ("system", 5, 5)
    assert 0 < pinned.seconds <= 60
    with pytest.raises(RequestError, match="at least one page"):
        await engine.operate(pin("short", prompt[:3]))
    await engine.operate(UnpinPrefix(name="system", owner=""))
    with pytest.raises(NotFoundError):
        await engine.operate(UnpinPrefix(name="system", owner=""))


async def test_owners_of_pins_see_their_own_and_have_a_limit_each(engine: LocalEngine) -> None:
    prompt = request(length=40).prompt_token_ids
    for name in ("one", "two"):
        await engine.operate(pin(name, prompt, owner="a"))
    with pytest.raises(OverloadedError) as refusal:
        await engine.operate(pin("three", prompt, owner="a"))
    assert refusal.value.code == "too_many_pins"
    await engine.operate(pin("two", prompt, owner="a"))  # in its own place
    await engine.operate(pin("one", prompt, owner="b"))
    names = {owner: [p.name for p in (await engine.operate(ListPins(owner=owner))).pins or ()] for owner in "abc"}
    assert names == {"a": ["one", "two"], "b": ["one"], "c": []}
    with pytest.raises(NotFoundError):
        await engine.operate(UnpinPrefix(name="two", owner="b"))


async def test_a_stopped_engine_pins_nothing(tmp_path: object) -> None:
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), startup_seconds=1.0)
    await engine.close()
    with pytest.raises(EngineUnavailableError):
        await engine.operate(pin("system", tuple(range(40))))


class ThreadNamingEncoder:
    facts = TextFacts(dimensions=1, vocab_size=VOCAB_SIZE, max_tokens=4)

    def __init__(self) -> None:
        self.batch_sizes = {4: 1}
        self.threads: set[str] = set()

    def encode(self, texts: Sequence[tuple[int, ...]]) -> np.ndarray:
        self.threads.add(threading.current_thread().name)
        return np.array([[text[0]] for text in texts], np.float32)


async def test_texts_are_embedded_on_the_loops_thread_beside_streams(tmp_path: object) -> None:
    encoder = ThreadNamingEncoder()
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), startup_seconds=1.0, encoder=encoder)
    assert engine.embedder is not None
    wanted = EmbedRequest(request_id="e", texts=((3,), (1,), (2,)))
    events, beside = await asyncio.gather(events_of(engine, request()), engine.embedder.embed(wanted))
    assert sum(len(event.token_ids) for event in events) == 8
    alone = await engine.embedder.embed(wanted)
    assert beside.tolist() == alone.tolist() == [[3], [1], [2]]
    assert encoder.threads == {"engine-loop"}
    await engine.close()
    with pytest.raises(EngineUnavailableError):
        await engine.embedder.embed(wanted)

"""Streams with adapters give the tokens that their adapter alone, added to the weights, would give."""

import asyncio
import random
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.adapter_lease import AdapterLease
from serving.engine.adapter_messages import ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.request import FinishReason, GenerateRequest, Priority, SamplingParams
from serving.engine.scheduler import Scheduler
from serving.errors import EngineError, NotFoundError, RequestError, UnsupportedError
from serving.settings.adapters import AdaptersConfig
from tests.fakes.tiny_adapters import write_adapter
from tests.fakes.tiny_model import MAX_MODEL_LEN, PAGE_SIZE, VOCAB_SIZE
from tests.serving.engine.adapted_engine import (
    BUCKETS,
    MAX_NUM_SEQS,
    NUM_PAGES,
    SLOTS,
    adapted_executor,
    merged_weights,
)

TARGETS = {
    "one": ("q_proj", "v_proj"),
    "two": ("down_proj", "o_proj", "k_proj"),
    "three": ("gate_proj", "up_proj"),
    "four": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
IN_SLOTS = tuple(TARGETS)[:SLOTS]
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=10),
    "seeded": SamplingParams(temperature=1.0, seed=7, max_tokens=10),
}

Tokens = dict[str, list[int]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for i, (name, targets) in enumerate(TARGETS.items()):
        write_adapter(root / name, i, targets, rank=1 + i)
    return root


class Run:
    """One scheduler over the shared executor, with `names` in its slots."""

    def __init__(
        self, root: Path, names: tuple[str, ...] = (), pages: int = NUM_PAGES, budget: int = BUCKETS[-1]
    ) -> None:
        executor = adapted_executor()
        assert executor.adapters is not None
        self.leases: dict[str, AdapterLease] = {}
        for slot, name in enumerate(names):
            files = executor.adapters.read(root / name)
            executor.adapters.write(slot, executor.adapters.place(files.arrays))
            self.leases[name] = AdapterLease(name, slot, files.digest)
        self.cached: dict[str, int | None] = {}
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=min(MAX_NUM_SEQS, budget),
            max_num_batched_tokens=budget,
            max_waiting=100,
            pool=BlockPool(pages, PAGE_SIZE),
            vocab_size=VOCAB_SIZE,
        )
        self.loop = EngineLoop(self.scheduler, executor, now=lambda: 0.0)

    def add(self, one: GenerateRequest) -> None:
        self.scheduler.add(one, 0.0, None, self.leases.get(one.adapter))

    def tokens(self, *requests: GenerateRequest) -> Tokens:
        for one in requests:
            self.add(one)
        made: Tokens = {}
        while not self.loop.idle:
            self.step(made)
        self.scheduler.check()
        return made

    def step(self, made: Tokens) -> None:
        for event in self.loop.step():
            assert event.error is None
            made.setdefault(event.request_id, []).extend(event.token_ids)
            if event.cached_tokens is not None:
                self.cached[event.request_id] = event.cached_tokens


def request(adapter: str, kind: str = "greedy", length: int = 37) -> GenerateRequest:
    prompt = np.random.default_rng(length).integers(0, VOCAB_SIZE, length).tolist()
    return GenerateRequest(
        request_id=f"{adapter or 'base'}-{kind}",
        prompt_token_ids=tuple(prompt),
        sampling=SAMPLING[kind],
        adapter=adapter,
    )


def requests(*adapters: str) -> list[GenerateRequest]:
    return [request(adapter, kind) for adapter in adapters for kind in SAMPLING]


@pytest.fixture(scope="module")
def alone(root: Path) -> Tokens:
    """What each request gives where its adapter is part of the weights and nothing runs beside it."""
    memory = adapted_executor().memory
    leaves = merged_weights(None)
    tokens: Tokens = {}
    for adapter in ("", *TARGETS):
        memory.put_weights([merged_weights(root / adapter) if adapter else leaves])
        for one in requests(adapter):
            tokens |= Run(root).tokens(replace(one, adapter=""))
    memory.put_weights([leaves])
    return tokens


def of(alone: Tokens, *adapters: str) -> Tokens:
    return {one.request_id: alone[one.request_id] for one in requests(*adapters)}


def test_adapters_change_what_the_model_says(alone: Tokens) -> None:
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)


def test_a_batch_of_all_gives_each_stream_the_tokens_of_its_adapter_merged_into_the_weights(
    root: Path, alone: Tokens
) -> None:
    assert Run(root, IN_SLOTS).tokens(*requests("", *IN_SLOTS)) == of(alone, "", *IN_SLOTS)


def test_small_chunks_and_preemption_change_nothing(root: Path, alone: Tokens) -> None:
    run, made = Run(root, IN_SLOTS, pages=14, budget=11), {}
    for one in requests("one", "two"):
        run.add(replace(one, priority=Priority.BATCH))
    for _ in range(12):
        run.step(made)
    for one in requests("", "three"):
        run.add(replace(one, priority=Priority.INTERACTIVE))
    while not run.loop.idle:
        run.step(made)
    assert made == of(alone, "", *IN_SLOTS)
    assert run.scheduler.stats.preemptions > 0


def test_pages_are_shared_under_one_adapter_and_never_between_two(root: Path, alone: Tokens) -> None:
    run = Run(root, IN_SLOTS)
    for adapter in ("", *IN_SLOTS):
        assert run.tokens(request(adapter)) == {f"{adapter or 'base'}-greedy": alone[f"{adapter or 'base'}-greedy"]}
        assert run.cached[f"{adapter or 'base'}-greedy"] == 0
    for adapter in ("", *IN_SLOTS):
        assert (
            run.tokens(request(adapter, "seeded"))[f"{adapter or 'base'}-seeded"]
            == alone[f"{adapter or 'base'}-seeded"]
        )
        assert run.cached[f"{adapter or 'base'}-seeded"] == 37 // PAGE_SIZE * PAGE_SIZE


def test_a_random_history_keeps_every_stream_its_tokens(root: Path, alone: Tokens) -> None:
    choose = random.Random(5)
    run, made, expected = Run(root, IN_SLOTS, pages=24, budget=13), {}, {}
    for number in range(30):
        one = request(choose.choice(("", *IN_SLOTS)), choose.choice(list(SAMPLING)))
        named = replace(one, request_id=f"{number}", cache_salt=choose.choice(("", "salt")))
        expected[named.request_id] = alone[one.request_id]
        run.add(named)
        for _ in range(choose.randrange(6)):
            run.step(made)
        if choose.random() < 0.2:
            gone = choose.choice(list(expected))
            if run.scheduler.abort(gone) is not None:
                del expected[gone]
        run.scheduler.check()
    while not run.loop.idle:
        run.step(made)
    assert {name: made[name] for name in expected} == expected


def engine(root: Path, *named: str, slots: int = SLOTS) -> LocalEngine:
    deployment = Deployment(
        name="tiny",
        model=ModelConfig(checkpoint=root),
        engine=EngineConfig(),
        adapters=AdaptersConfig(slots=slots, named={name: root / name for name in named}, folder=root),
    )
    executor = adapted_executor()
    return start_local_engine(deployment, executor, 0.0, stacks=executor.adapters if slots else None)


async def stream(engine: LocalEngine, one: GenerateRequest) -> list[int]:
    return [token async for event in engine.generate(one) for token in event.token_ids]


async def test_more_adapters_than_slots_are_loaded_and_evicted_while_others_stream(root: Path, alone: Tokens) -> None:
    live = engine(root, *TARGETS)
    rounds = [replace(one, request_id=f"{one.request_id}-{n}") for n in range(3) for one in requests("", *TARGETS)]
    made = await asyncio.gather(*(stream(live, one) for one in rounds))
    assert made == [alone[one.request_id.rpartition("-")[0]] for one in rounds]
    assert live.adapters is not None
    assert live.adapters.counters.loads > SLOTS
    assert live.adapters.counters.evictions == live.adapters.counters.loads - SLOTS
    assert all(state.streams == 0 for state in live.adapters.states())
    await live.close()


async def test_adapters_come_and_go_by_operations(root: Path, alone: Tokens) -> None:
    live = engine(root, "one")
    with pytest.raises(NotFoundError):
        await stream(live, request("two"))
    report = await live.operate(LoadAdapter(name="second", folder="two"))
    assert [state.name for state in report.adapters or ()] == ["one", "second"]
    assert await stream(live, replace(request("two"), adapter="second")) == alone["two-greedy"]
    report = await live.operate(PinAdapter(name="second", pinned=True))
    assert [(state.slot is not None, state.pinned) for state in report.adapters or ()] == [(False, False), (True, True)]
    await live.operate(UnloadAdapter(name="second"))
    with pytest.raises(NotFoundError):
        await stream(live, replace(request("two"), adapter="second"))
    with pytest.raises(RequestError, match="inside of adapters"):
        await live.operate(LoadAdapter(name="outside", folder="../adapters"))
    with pytest.raises(RequestError, match="inside of adapters"):
        await live.operate(LoadAdapter(name="outside", folder="one\0"))
    with pytest.raises(RequestError, match="there is no such file"):
        await live.operate(LoadAdapter(name="nothing", folder="nowhere"))
    assert [state.name for state in (await live.operate(ListAdapters())).adapters or ()] == ["one"]
    await live.close()


async def test_a_name_that_comes_back_with_other_weights_shares_no_pages_with_the_first(
    root: Path, alone: Tokens
) -> None:
    live = engine(root)
    await live.operate(LoadAdapter(name="mine", folder="one"))
    assert await stream(live, replace(request("one"), adapter="mine")) == alone["one-greedy"]
    await live.operate(UnloadAdapter(name="mine"))
    await live.operate(LoadAdapter(name="mine", folder="four"))
    assert await stream(live, replace(request("four"), adapter="mine")) == alone["four-greedy"]
    await live.close()


async def test_an_adapter_that_was_trained_again_in_its_folder_has_to_be_unloaded_first(
    root: Path, alone: Tokens, tmp_path: Path
) -> None:
    mine = root / "mine"
    shutil.copytree(root / "one", mine)
    live = engine(root)
    await live.operate(LoadAdapter(name="mine", folder="mine"))
    assert await stream(live, replace(request("one"), adapter="mine")) == alone["one-greedy"]
    await live.operate(LoadAdapter(name="mine", folder="mine"))  # the same files
    shutil.rmtree(mine)
    shutil.copytree(root / "four", mine)
    with pytest.raises(RequestError, match="unload it first"):
        await live.operate(LoadAdapter(name="mine", folder="mine"))
    await live.operate(UnloadAdapter(name="mine"))
    await live.operate(LoadAdapter(name="mine", folder="mine"))
    assert await stream(live, replace(request("four"), adapter="mine")) == alone["four-greedy"]
    shutil.rmtree(mine)
    await live.close()


async def test_a_device_without_room_for_one_adapter_leaves_its_slot_to_who_waits_for_another(
    root: Path, alone: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = engine(root, *TARGETS)
    memory, adapters = adapted_executor().adapters, live.adapters
    assert memory is not None
    assert adapters is not None
    held = [await adapters.lease(name) for name in ("three", "four")]
    place, others_wait = memory.place, threading.Event()

    def full_at_first(arrays: Sequence[np.ndarray]) -> None:
        memory.place = place
        assert others_wait.wait(60)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(memory, "place", full_at_first)
    first, second = (asyncio.create_task(stream(live, request(name))) for name in ("one", "two"))
    while adapters.waiting < SLOTS - 1:
        await asyncio.sleep(0)
    others_wait.set()
    with pytest.raises(EngineError, match="cannot be loaded") as failure:
        await first
    assert failure.value.code == "adapter_failed"
    assert await second == alone["two-greedy"]
    for lease in held:
        adapters.release(lease)
    await live.close()


async def test_a_deadline_counts_while_an_adapter_is_waited_for(root: Path) -> None:
    live = engine(root, "one")
    assert live.adapters is not None
    held = [await live.adapters.lease("one")]
    for name in ("two", "three"):
        await live.operate(LoadAdapter(name=name, folder=name))
        held.append(await live.adapters.lease(name))
    await live.operate(LoadAdapter(name="four", folder="four"))
    late = replace(request("four"), deadline_seconds=0.01)
    assert [event.finish_reason async for event in live.generate(late)] == [FinishReason.DEADLINE]
    for lease in held:
        live.adapters.release(lease)
    await live.close()


async def test_without_slots_a_request_with_an_adapter_is_refused(root: Path) -> None:
    live = engine(root, slots=0)
    with pytest.raises(UnsupportedError, match="has no adapters"):
        await stream(live, request("one"))
    with pytest.raises(UnsupportedError, match="has no adapters"):
        await live.operate(ListAdapters())
    await live.close()

"""Streams with adapters give the tokens that their adapter alone, added to the weights, would give."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from serving.engine.adapter_lease import AdapterLease
from serving.engine.adapters import Adapters
from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from tests.fakes.tiny_adapters import write_adapter
from tests.fakes.tiny_model import DECODE_ROUNDS, MAX_MODEL_LEN, PAGE_SIZE, VOCAB_SIZE
from tests.serving.engine.adapted_engine import BUCKETS, NUM_PAGES, adapted_executor, merged_weights

NAMES = ("one", "two", "three")
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=12),
    "seeded": SamplingParams(temperature=1.0, seed=7, max_tokens=12),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    targets = (("q_proj", "v_proj"), ("down_proj", "o_proj", "k_proj"), ("gate_proj", "up_proj"))
    return {name: write_adapter(root / name, i, targets[i], rank=4 - i) for i, name in enumerate(NAMES)}


class Run:
    """One scheduler over the shared executor, with adapters in its slots."""

    def __init__(
        self, folders: dict[str, Path], rounds: int = 1, pages: int = NUM_PAGES, budget: int = BUCKETS[-1]
    ) -> None:
        executor = adapted_executor()
        self.leases: dict[str, AdapterLease] = {}
        for slot, (name, folder) in enumerate(folders.items()):
            files = executor.adapters.read(folder)
            executor.adapters.write(slot, executor.adapters.place(files.arrays))
            self.leases[name] = AdapterLease(name, slot, files.digest)
        self.pool = BlockPool(pages, PAGE_SIZE)
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=8,
            max_num_batched_tokens=budget,
            max_waiting=100,
            pool=self.pool,
            vocab_size=VOCAB_SIZE,
            decode_rounds=rounds,
        )
        self.loop = EngineLoop(self.scheduler, executor, now=lambda: 0.0)

    def tokens(self, requests: list[GenerateRequest]) -> dict[str, list[int]]:
        for one in requests:
            self.scheduler.add(one, 0.0, None, self.leases.get(one.adapter))
        made: dict[str, list[int]] = {one.request_id: [] for one in requests}
        self.cached: dict[str, int | None] = {}
        while not self.loop.idle:
            for event in self.loop.step():
                made[event.request_id] += event.token_ids
                if event.cached_tokens is not None:
                    self.cached[event.request_id] = event.cached_tokens
                assert event.error is None
        self.scheduler.check()
        return made


def request(adapter: str, kind: str, length: int = 37) -> GenerateRequest:
    prompt = np.random.default_rng(length).integers(0, VOCAB_SIZE, length).tolist()
    return GenerateRequest(
        request_id=f"{adapter or 'base'}-{kind}-{length}",
        prompt_token_ids=tuple(prompt),
        sampling=SAMPLING[kind],
        adapter=adapter,
    )


def all_requests(length: int = 37) -> list[GenerateRequest]:
    return [request(adapter, kind, length) for adapter in ("", *NAMES) for kind in SAMPLING]


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> dict[str, list[int]]:
    """What each request gives where its adapter is part of the weights and nothing runs beside it."""
    executor = adapted_executor()
    base = executor.memory
    leaves = tuple(executor._resident.weights)
    tokens: dict[str, list[int]] = {}
    for adapter in ("", *NAMES):
        base.put_weights([merged_weights(folders[adapter]) if adapter else leaves])
        for kind in SAMPLING:
            one = request(adapter, kind)
            plain = GenerateRequest(
                request_id=one.request_id, prompt_token_ids=one.prompt_token_ids, sampling=one.sampling
            )
            tokens |= Run({}).tokens([plain])
    base.put_weights([leaves])
    return tokens


def test_adapters_change_what_the_model_says(alone: dict[str, list[int]]) -> None:
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)


@pytest.mark.parametrize("rounds", [1, DECODE_ROUNDS])
def test_a_batch_of_all_adapters_gives_each_stream_the_tokens_of_its_own_merged_into_the_weights(
    folders: dict[str, Path], alone: dict[str, list[int]], rounds: int
) -> None:
    assert Run(folders, rounds).tokens(all_requests()) == alone

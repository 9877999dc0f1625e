"""Engines for settings: a few executors, each compiled with all that its settings may ask for, and engines on them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scripts.check_feature_pairs.checkpoint import (
    ADAPTER,
    VOCAB_SIZE,
    WINDOW,
    vocabulary,
    write_adapter,
    write_checkpoint,
    write_head,
)
from scripts.check_feature_pairs.features import FEW, PLENTY, Evidence, Setting
from serving.config import Deployment, EngineConfig, MeshConfig, ModelConfig
from serving.engine.device import load_executor
from serving.engine.executor import Executor
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.request import GenerateRequest, SamplingParams, TokenEvent
from serving.engine.tiers.opening import open_tiers
from serving.settings.adapters import AdaptersConfig
from serving.settings.prefix_cache import PrefixCacheConfig
from serving.settings.speculation import SpeculationConfig

STREAMS = 4
ROUNDING = 1e-4  # of a logit: two best logits nearer than this may change places with the order of a sum
_BUCKETS = (16, 32)  # of tokens in a step; the smaller one has room for guesses of every stream
_CHUNK = 16
_MOST_ROUNDS, _MOST_GUESSES = 4, 3
_HOST_BYTES = 4 << 20
_TOKENS = 36  # of an answer
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tokens: dict[str, list[int]]
    evidence: Evidence


class Laboratory:
    """`folder` takes checkpoints and caches. `ready`: an executor for settings that ask for no other programs than
    it has; None: all are compiled here."""

    def __init__(self, folder: Path, ready: Executor | None = None) -> None:
        self._folder = folder
        self._checkpoint = write_checkpoint(folder / "checkpoint")
        self._drafts = {"draft": write_checkpoint(folder / "draft", seed=2), "eagle3": write_head(folder / "head")}
        self._adapter = write_adapter(folder / "adapter")
        self._executors: dict[tuple[object, ...], Executor] = {} if ready is None else {_kind(Setting()): ready}
        self._disks = 0

    async def run(self, setting: Setting, requests: list[GenerateRequest]) -> Outcome:
        """All requests at once, on an engine that has been brought to the state that the setting names."""
        deployment = self._deployment(setting)
        of_disk: list[GenerateRequest] = []
        if "disk" in setting.tiers:
            of_disk = requests[::2] if "host" in setting.tiers else requests
            async with self._engine(setting, deployment) as engine:
                await _read_prompts(engine, of_disk)
                await _until_written(engine)
        async with self._engine(setting, deployment) as engine:
            if setting.warm:
                await _read_prompts(engine, [one for one in requests if one not in of_disk])
            if "host" in setting.tiers:
                await _read_prompts(engine, others(3 * STREAMS))
            answers = await asyncio.gather(*(_events(engine, one) for one in requests))
            stats = await engine.stats()
        tokens = {
            one.request_id: [token for event in events for token in event.token_ids]
            for one, events in zip(requests, answers, strict=True)
        }
        return Outcome(tokens=tokens, evidence=Evidence(stats=stats, events=[e for events in answers for e in events]))

    async def run_alone(self, setting: Setting, requests: list[GenerateRequest]) -> dict[str, list[int]]:
        """One request after another, without a prefix cache."""
        async with self._engine(setting, self._deployment(setting, caching=False)) as engine:
            made = {one.request_id: await _events(engine, one) for one in requests}
        return {name: [token for event in events for token in event.token_ids] for name, events in made.items()}

    async def gap(self, setting: Setting, request: GenerateRequest, before: list[int]) -> float:
        """Between the two best logits after the prompt and `before`."""
        sampling = replace(request.sampling, max_tokens=len(before) + 1, logprobs=2)
        probe = replace(request, request_id="0", output_token_ids=tuple(before), sampling=sampling)
        async with self._engine(setting, self._deployment(setting, caching=False)) as engine:
            (event, *_) = await _events(engine, probe)
        best, second = event.logprobs[0].top_logprobs
        return best - second

    @asynccontextmanager
    async def _engine(self, setting: Setting, deployment: Deployment) -> AsyncIterator[LocalEngine]:
        whole = self._executor(setting)
        executor = whole.beside()
        executor.limits = replace(
            whole.limits,
            max_num_seqs=STREAMS,
            num_pages=setting.pages,
            token_buckets=tuple(b for b in whole.limits.token_buckets if b <= _CHUNK or not setting.chunked),
            decode_rounds=setting.rounds,
            guesses=0 if setting.speculation == "off" else _MOST_GUESSES,
        )
        engine = start_local_engine(
            deployment,
            executor,
            startup_seconds=0.0,
            vocabulary=vocabulary,
            version="fp_tiny",
            stacks=executor.adapters,
            tiers=open_tiers(deployment, executor, "fp_tiny"),
        )
        try:
            yield engine
        finally:
            await engine.close()

    def _executor(self, setting: Setting) -> Executor:
        """One for each kind of programs."""
        kind = _kind(setting)
        if kind not in self._executors:
            largest = replace(setting, pages=PLENTY, rounds=_MOST_ROUNDS, tiers=frozenset())
            if largest.speculation == "off":
                largest = replace(largest, speculation="ngram")
            executor = load_executor(self._deployment(largest), WINDOW)
            assert isinstance(executor, Executor)
            self._executors[kind] = executor
        return self._executors[kind]

    def _deployment(self, setting: Setting, *, caching: bool = True) -> Deployment:
        disk = None
        if "disk" in setting.tiers:
            self._disks += 1
            disk = self._folder / f"disk-{self._disks}"
        return Deployment(
            name="tiny",
            model=ModelConfig(checkpoint=self._checkpoint, dtype="float32"),
            engine=EngineConfig(
                max_model_len=WINDOW,
                max_num_seqs=STREAMS,
                max_num_batched_tokens=_BUCKETS[-1],
                token_buckets=_BUCKETS,
                page_size=4,
                num_pages=PLENTY,
                cache_dtype=setting.cache_dtype,
                prefix_caching=caching,
                decode_rounds=_MOST_ROUNDS,
                compilation_cache=self._folder / "compiled",
            ),
            mesh=MeshConfig(tensor=setting.devices),
            adapters=AdaptersConfig(slots=1, max_rank=4, named={ADAPTER: self._adapter}),
            prefix_cache=PrefixCacheConfig(host_bytes=_HOST_BYTES if setting.tiers and caching else None, disk=disk),
            speculation=SpeculationConfig(
                kind=setting.speculation,
                checkpoint=self._drafts.get(setting.speculation),
                depth=_MOST_GUESSES,
                ngram_shortest=1,
                adaptive=False,
            ),
        )


def _kind(setting: Setting) -> tuple[object, ...]:
    """Settings of one kind share their programs."""
    made_here = setting.speculation if setting.speculation in ("draft", "eagle3") else None
    return setting.cache_dtype, setting.devices, made_here


def workload(setting: Setting, seed: int) -> list[GenerateRequest]:
    """Greedy and drawn streams, whose prompts repeat themselves so that there is something to guess from."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(STREAMS):
        motif = random.integers(1, VOCAB_SIZE, 7 + number).tolist()
        prompt = (motif * 8)[: int(random.integers(24, 46))]
        sampling = SamplingParams(max_tokens=_TOKENS, temperature=0.0)
        if number > 1:
            sampling = replace(sampling, temperature=0.9, top_k=40 if number == 3 else 0, seed=seed * 16 + number)
        request = GenerateRequest(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=sampling)
        for ask in setting.asks:
            request = ask(request)
        made.append(request)
    return made


def others(count: int) -> list[GenerateRequest]:
    """Prompts that nobody asks for again, which take pages."""
    random = np.random.default_rng(99)
    return [
        GenerateRequest(
            request_id=f"other {number}",
            prompt_token_ids=tuple(random.integers(1, VOCAB_SIZE, FEW).tolist()),
            sampling=SamplingParams(max_tokens=1),
        )
        for number in range(count)
    ]


async def _read_prompts(engine: LocalEngine, requests: list[GenerateRequest]) -> None:
    for one in requests:
        sampling = replace(one.sampling, max_tokens=1, logprobs=None)
        await _events(engine, replace(one, request_id=f"before {one.request_id}", sampling=sampling, grammar=None))


async def _events(engine: LocalEngine, one: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(one)]


async def _until_written(engine: LocalEngine) -> None:
    """Until the disk tier has what was published, and nothing more comes."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        before, same = -1, 0
        while same < 10:
            stats = (await engine.stats()).tiers
            written = sum(tier.pages for tier in stats if tier.tier == "disk")
            same = same + 1 if written == before and written else 0
            before = written
            await asyncio.sleep(_LOOK_SECONDS)

"""Texts that the served model embeds: the vectors of the hub's own library, whatever happens around them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from models import checkpoint
from pallas_kernels.dispatch import attention_body
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.block_pool import BlockPool
from serving.engine.embedding import EmbedRequest, PooledEvent, TextFacts
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.request import GenerateRequest, Pooling, Priority, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.text_model import TextModel
from tests.models import hub_checkpoints

WINDOW, PAGE, ROWS, BUDGET, VOCAB = 128, 8, 4, 32, 257
TOLERANCE = 1e-4
READ = SamplingParams(temperature=0.0, max_tokens=0)


@dataclass(frozen=True)
class Served:
    hub: PreTrainedModel
    executor: Executor

    def states(self, text: tuple[int, ...]) -> np.ndarray:
        """[T, D] after the last norm, by the hub's library."""
        with torch.no_grad():
            return self.hub.model(torch.tensor([text])).last_hidden_state[0].numpy()  # pyright: ignore[reportCallIssue]

    def vector(self, text: tuple[int, ...], pooling: Pooling, *, unit: bool = True) -> np.ndarray:
        states = self.states(text)
        vector = states[-1] if pooling is Pooling.LAST else states.mean(axis=0)
        return vector / np.linalg.norm(vector) if unit else vector


def served(folder: Path, architecture: str, *, unit: bool) -> Served:
    hub = hub_checkpoints.model(architecture, num_attention_heads=4)
    model, shape, _ = checkpoint.load(hub_checkpoints.write(hub, folder), jnp.float32, layers="list")
    limits = ExecutorLimits(
        max_num_seqs=ROWS, max_model_len=WINDOW, page_size=PAGE, num_pages=64, token_buckets=(8, BUDGET)
    )
    attention, dtype = attention_body("reference"), jnp.dtype("float32")
    return Served(hub, Executor(model, shape, limits, attention, dtype, unit_vectors=unit))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return served(tmp_path_factory.mktemp("qwen3"), "Qwen3ForCausalLM", unit=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return served(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM", unit=False)


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, length).tolist())


def engine_of(executor: Executor, pooling: Pooling, *, unit: bool) -> LocalEngine:
    deployment = Deployment(name="tiny", model=ModelConfig(checkpoint=Path()), engine=EngineConfig(max_waiting=64))
    facts = TextFacts(dimensions=64, vocab_size=VOCAB, max_tokens=WINDOW, unit=unit)
    model = TextModel(pooling=pooling, unit=unit, facts=facts)
    return start_local_engine(deployment, executor, startup_seconds=0.0, text_model=model)


async def vectors_of(engine: LocalEngine, *texts: tuple[int, ...], name: str = "texts") -> np.ndarray:
    assert engine.model_embedder is not None
    return await engine.model_embedder.embed(EmbedRequest(request_id=name, texts=texts, model="tiny"))


def generation(name: str, length: int, priority: Priority = Priority.STANDARD) -> GenerateRequest:
    sampling = SamplingParams(temperature=1.0, seed=length, max_tokens=20)
    return GenerateRequest(
        request_id=name, prompt_token_ids=text(1000 + length, length), sampling=sampling, priority=priority
    )


async def tokens_of(engine: LocalEngine, request: GenerateRequest) -> list[int]:
    return [token for event in [event async for event in engine.generate(request)] for token in event.token_ids]


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("family", ["qwen3", "llama"])
async def test_vectors_are_the_hubs_in_one_part_and_in_several(
    family: str, pooling: Pooling, request: pytest.FixtureRequest
) -> None:
    model: Served = request.getfixturevalue(family)
    unit = family == "qwen3"
    engine = engine_of(model.executor, pooling, unit=unit)
    texts = [text(length, length) for length in (1, 7, 33, 100, WINDOW)]  # the budget is 32, of all together
    found = await vectors_of(engine, *texts)
    await engine.close()
    wanted = np.stack([model.vector(one, pooling, unit=unit) for one in texts])
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
    assert found.dtype == np.float32


async def test_streams_beside_texts_keep_their_tokens(qwen3: Served) -> None:
    engine = engine_of(qwen3.executor, Pooling.MEAN, unit=True)
    streams = [generation(f"stream-{length}", length) for length in (3, 20, 45)]
    alone = [await tokens_of(engine, stream) for stream in streams]
    texts = [text(length, length) for length in range(20, 60, 4)]
    vectors, *beside = await asyncio.gather(vectors_of(engine, *texts), *[tokens_of(engine, one) for one in streams])
    await engine.close()
    assert beside == alone
    np.testing.assert_allclose(vectors, np.stack([qwen3.vector(one, Pooling.MEAN) for one in texts]), atol=TOLERANCE)


class Steps:
    """The loop, step by step."""

    def __init__(self, executor: Executor, pages: int = 64) -> None:
        self.scheduler = Scheduler(
            max_model_len=WINDOW,
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            max_waiting=64,
            pool=BlockPool(pages, PAGE),
            vocab_size=VOCAB,
        )
        self.loop = EngineLoop(self.scheduler, executor, now=lambda: 0.0)
        self.ends: dict[str, TokenEvent] = {}

    def add(self, name: str, ids: tuple[int, ...], pooling: Pooling) -> None:
        request = GenerateRequest(
            request_id=name, prompt_token_ids=ids, sampling=READ, priority=Priority.BATCH, tenant="texts"
        )
        self.scheduler.add(request, 0.0, pooling=pooling)

    def run(self, most: int = 10_000) -> None:
        for _ in range(most):
            if self.loop.idle:
                return
            for event in self.loop.step():
                if event.finish_reason is not None:
                    self.ends[event.request_id] = event
            self.scheduler.check()

    def vector(self, name: str) -> np.ndarray:
        event = self.ends[name]
        assert isinstance(event, PooledEvent), event
        return event.vector


@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_text_that_was_preempted_has_the_vector_of_one_that_was_not(qwen3: Served, pooling: Pooling) -> None:
    steps, ids = Steps(qwen3.executor), [text(at, 120) for at in range(3)]
    for at, one in enumerate(ids):
        steps.add(f"text-{at}", one, pooling)
    steps.run(3)
    for at in range(ROWS):  # they take all rows
        steps.scheduler.add(generation(f"stream-{at}", 20 + at), 0.0)
    steps.run()
    assert steps.scheduler.stats.preemptions > 0
    for at, one in enumerate(ids):
        np.testing.assert_allclose(steps.vector(f"text-{at}"), qwen3.vector(one, pooling), atol=TOLERANCE)


@pytest.mark.parametrize(("pooling", "cached"), [(Pooling.LAST, 48), (Pooling.MEAN, 0)])
def test_known_pages_are_read_where_the_last_token_alone_counts(qwen3: Served, pooling: Pooling, cached: int) -> None:
    steps, head = Steps(qwen3.executor), text(5, 50)
    steps.scheduler.add(
        GenerateRequest(request_id="before", prompt_token_ids=head, sampling=SamplingParams(max_tokens=1)), 0.0
    )
    steps.run()
    longer = (*head, *text(6, 20))
    steps.add("text", longer, pooling)
    steps.add("head", head, pooling)
    steps.run()
    assert [steps.ends[name].cached_tokens for name in ("text", "head")] == [cached] * 2
    np.testing.assert_allclose(steps.vector("text"), qwen3.vector(longer, pooling), atol=TOLERANCE)
    np.testing.assert_allclose(steps.vector("head"), qwen3.vector(head, pooling), atol=TOLERANCE)


def test_a_text_leaves_pages_that_generation_reads(qwen3: Served) -> None:
    steps, head = Steps(qwen3.executor), text(8, 41)
    steps.add("text", head, Pooling.MEAN)
    steps.run()
    steps.scheduler.add(GenerateRequest(request_id="after", prompt_token_ids=head, sampling=SamplingParams()), 0.0)
    steps.run(1)
    assert steps.scheduler.stats.prefix_cache_hits == 40


async def test_who_leaves_takes_the_text_along(qwen3: Served) -> None:
    engine = engine_of(qwen3.executor, Pooling.LAST, unit=True)
    leaving = asyncio.create_task(vectors_of(engine, *[text(at, 120) for at in range(40)], name="leaving"))
    while not (await engine.stats()).running:
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert engine.model_embedder is not None
    while (await engine.stats()).running + (await engine.stats()).waiting:
        await asyncio.sleep(0)
    assert (engine.model_embedder.waiting_tokens, leaving.cancelled()) == (0, True)
    one = text(3, 9)
    np.testing.assert_allclose((await vectors_of(engine, one))[0], qwen3.vector(one, Pooling.LAST), atol=TOLERANCE)
    await engine.close()


def test_an_executor_without_texts_has_no_program_for_them(qwen3: Served) -> None:
    pooled = qwen3.executor.programs_compiled
    assert pooled == qwen3.executor.programs.count + len(qwen3.executor.limits.token_buckets)

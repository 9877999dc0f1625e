"""Texts that the served model embeds: the vectors of the hub's own library, whatever happens around them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax import Array
from transformers import PreTrainedModel

from models import checkpoint
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.block_pool import BlockPool
from serving.engine.embedding import EmbedRequest, PooledEvent, TextFacts
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.pooler import FIELDS, Pooler, pool_texts
from serving.engine.request import GenerateRequest, Pooling, Priority, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.text_model import TextModel
from sharding.mesh import one_device
from tests.fakes.tiny_model import BUCKETS, CONFIG, MAX_MODEL_LEN, MAX_NUM_SEQS, tiny_executor, tiny_llama
from tests.models import hub_checkpoints
from tests.models.forward import dense_states

PAGE, ROWS, BUDGET, VOCAB, WIDTH = 8, 4, 32, CONFIG["vocab_size"], CONFIG["hidden_size"]
TOLERANCE = 1e-4
READ = SamplingParams(temperature=0.0, max_tokens=0)


@dataclass(frozen=True)
class Served:
    hub: PreTrainedModel
    executor: Executor

    def vector(self, text: tuple[int, ...], pooling: Pooling) -> np.ndarray:
        return vector_of(states_of(self.hub, text), pooling)


def states_of(hub: PreTrainedModel, text: tuple[int, ...]) -> np.ndarray:
    """[T, D] after the last norm, by the hub's library."""
    with torch.no_grad():
        return hub.base_model(torch.tensor([text])).last_hidden_state[0].numpy()


def vector_of(states: np.ndarray, pooling: Pooling) -> np.ndarray:
    vector = states[-1] if pooling is Pooling.LAST else states.mean(axis=0)
    return vector / np.linalg.norm(vector)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The programs that other tests have compiled, with weights that the hub's library has too, for a while."""
    sizes = {key: CONFIG[key] for key in CONFIG if key not in ("rope_theta", "hidden_act")}
    hub = hub_checkpoints.model("LlamaForCausalLM", **sizes, head_dim=WIDTH // CONFIG["num_attention_heads"])
    model, _, _ = checkpoint.load(
        hub_checkpoints.write(hub, tmp_path_factory.mktemp("llama")), jnp.float32, layers="list"
    )
    shared = tiny_executor()
    executor = shared.beside()
    executor.pooler = Pooler(shared.programs, MAX_NUM_SEQS, one_device(), unit=True)
    own = weights_of(tiny_llama()[0])
    hubs = zip(weights_of(model), own, strict=True)
    shared.memory.put_weights([tuple(jax.device_put(weights, like.sharding) for weights, like in hubs)])
    yield Served(hub, executor)
    shared.memory.put_weights([own])


def weights_of(model: object) -> tuple[Array, ...]:
    return tuple(jax.tree.leaves(nnx.split(model)[1]))


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, length).tolist())


def engine_of(executor: Executor, pooling: Pooling) -> LocalEngine:
    deployment = Deployment(name="tiny", model=ModelConfig(checkpoint=Path()), engine=EngineConfig(max_waiting=64))
    facts = TextFacts(dimensions=WIDTH, vocab_size=VOCAB, max_tokens=MAX_MODEL_LEN)
    model = TextModel(pooling=pooling, unit=True, facts=facts)
    return start_local_engine(deployment, executor, startup_seconds=0.0, text_model=model)


async def vectors_of(engine: LocalEngine, *texts: tuple[int, ...], name: str = "texts") -> np.ndarray:
    assert engine.model_embedder is not None
    return await engine.model_embedder.embed(EmbedRequest(request_id=name, texts=texts, model="tiny"))


def generation(name: str, length: int) -> GenerateRequest:
    sampling = SamplingParams(temperature=1.0, seed=length, max_tokens=20)
    return GenerateRequest(request_id=name, prompt_token_ids=text(1000 + length, length), sampling=sampling)


async def tokens_of(engine: LocalEngine, request: GenerateRequest) -> list[int]:
    return [token for event in [event async for event in engine.generate(request)] for token in event.token_ids]


@pytest.mark.parametrize("pooling", list(Pooling))
async def test_vectors_are_the_hubs_in_one_part_and_in_several(llama: Served, pooling: Pooling) -> None:
    engine = engine_of(llama.executor, pooling)
    # A step has 128 tokens, of all of them together.
    texts = [text(length, length) for length in (1, 7, 100, 200, MAX_MODEL_LEN)]
    found = await vectors_of(engine, *texts)
    await engine.close()
    np.testing.assert_allclose(found, np.stack([llama.vector(one, pooling) for one in texts]), atol=TOLERANCE)
    assert found.dtype == np.float32


@pytest.mark.parametrize("pooling", list(Pooling))
def test_states_of_a_qwen3_become_the_hubs_vectors(pooling: Pooling, tmp_path: Path) -> None:
    hub = hub_checkpoints.model("Qwen3ForCausalLM")
    model, _, _ = checkpoint.load(hub_checkpoints.write(hub, tmp_path), jnp.float32, layers="list")
    ids, texts = text(4, 24), np.zeros((len(FIELDS), 2), np.int32)
    hidden = jnp.array(dense_states(model, np.array(ids)))
    texts[:, 0] = (0, 23, 24, 1, 1) if pooling is Pooling.LAST else (0, 0, 24, 24, 1)
    texts[0, 1] = 1  # no text
    sums = jnp.full((1, hidden.shape[1]), jnp.nan)
    _, vectors = pool_texts(True, sums, hidden, jnp.array(texts))
    np.testing.assert_allclose(vectors[0], vector_of(states_of(hub, ids), pooling), atol=TOLERANCE)


def test_what_is_no_number_beside_a_text_does_not_reach_its_vector() -> None:
    hidden = jnp.full((8, 4), jnp.nan).at[2:5].set(jnp.arange(12.0).reshape(3, 4))
    texts = np.zeros((len(FIELDS), 2), np.int32)
    texts[:, 0], texts[0, 1] = (0, 2, 5, 3, 1), 1
    sums, vectors = pool_texts(False, jnp.zeros((1, 4)), hidden, jnp.array(texts))
    assert (vectors[0].tolist(), sums[0].tolist()) == ([4, 5, 6, 7], [12, 15, 18, 21])


async def test_streams_beside_texts_keep_their_tokens(llama: Served) -> None:
    engine = engine_of(llama.executor, Pooling.MEAN)
    streams = [generation(f"stream-{length}", length) for length in (3, 20, 45)]
    alone = [await tokens_of(engine, stream) for stream in streams]
    texts = [text(length, length) for length in range(20, 180, 16)]
    vectors, *beside = await asyncio.gather(vectors_of(engine, *texts), *[tokens_of(engine, one) for one in streams])
    await engine.close()
    assert beside == alone
    np.testing.assert_allclose(vectors, np.stack([llama.vector(one, Pooling.MEAN) for one in texts]), atol=TOLERANCE)


class Steps:
    """The loop, step by step."""

    def __init__(self, executor: Executor) -> None:
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            max_waiting=64,
            pool=BlockPool(128, PAGE),
            vocab_size=VOCAB,
        )
        self.loop = EngineLoop(self.scheduler, executor, now=lambda: 0.0)
        self.ends: dict[str, TokenEvent] = {}

    def add(self, name: str, ids: tuple[int, ...], pooling: Pooling) -> None:
        request = GenerateRequest(request_id=name, prompt_token_ids=ids, sampling=READ, priority=Priority.BATCH)
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
def test_a_text_that_was_preempted_has_the_vector_of_one_that_was_not(llama: Served, pooling: Pooling) -> None:
    steps, ids = Steps(llama.executor), [text(at, 120) for at in range(3)]
    for at, one in enumerate(ids):
        steps.add(f"text-{at}", one, pooling)
    steps.run(3)
    for at in range(ROWS):  # they take all rows
        steps.scheduler.add(generation(f"stream-{at}", 20 + at), 0.0)
    steps.run()
    assert steps.scheduler.stats.preemptions > 0
    for at, one in enumerate(ids):
        np.testing.assert_allclose(steps.vector(f"text-{at}"), llama.vector(one, pooling), atol=TOLERANCE)


@pytest.mark.parametrize(("pooling", "cached"), [(Pooling.LAST, 48), (Pooling.MEAN, 0)])
def test_known_pages_are_read_where_the_last_token_alone_counts(llama: Served, pooling: Pooling, cached: int) -> None:
    steps, head = Steps(llama.executor), text(5, 50)
    steps.scheduler.add(
        GenerateRequest(request_id="before", prompt_token_ids=head, sampling=SamplingParams(max_tokens=1)), 0.0
    )
    steps.run()
    longer = (*head, *text(6, 20))
    steps.add("text", longer, pooling)
    steps.add("head", head, pooling)
    steps.run()
    assert [steps.ends[name].cached_tokens for name in ("text", "head")] == [cached] * 2
    np.testing.assert_allclose(steps.vector("text"), llama.vector(longer, pooling), atol=TOLERANCE)
    np.testing.assert_allclose(steps.vector("head"), llama.vector(head, pooling), atol=TOLERANCE)


def test_a_text_leaves_pages_that_generation_reads(llama: Served) -> None:
    steps, head = Steps(llama.executor), text(8, 41)
    steps.add("text", head, Pooling.MEAN)
    steps.run()
    steps.scheduler.add(GenerateRequest(request_id="after", prompt_token_ids=head, sampling=SamplingParams()), 0.0)
    steps.run(1)
    assert steps.scheduler.stats.prefix_cache_hits == 40


async def test_who_leaves_takes_the_texts_along(llama: Served) -> None:
    engine = engine_of(llama.executor, Pooling.LAST)
    leaving = asyncio.create_task(vectors_of(engine, *[text(at, 120) for at in range(100)], name="leaving"))
    while not (await engine.stats()).running:
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert engine.model_embedder is not None
    assert (engine.model_embedder.waiting_tokens, leaving.cancelled()) == (0, True)
    one = text(3, 9)
    np.testing.assert_allclose((await vectors_of(engine, one))[0], llama.vector(one, Pooling.LAST), atol=TOLERANCE)
    stats = await engine.stats()
    await engine.close()
    assert (stats.running, stats.waiting) == (0, 0)


def test_what_embeds_nothing_has_no_program_for_it(llama: Served) -> None:
    assert llama.executor.programs_compiled - tiny_executor().programs_compiled == len(BUCKETS)

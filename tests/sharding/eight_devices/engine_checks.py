"""A model on a mesh gives the tokens of one device, with no collective more than it must have, and pages in place."""

import asyncio
import math
import re
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from serving.config import Deployment, ModelConfig
from serving.engine.embedding import EmbedRequest, TextFacts
from serving.engine.executor import Executor
from serving.engine.local import start_local_engine
from serving.engine.pooler import Pooler
from serving.engine.request import Pooling
from serving.engine.text_model import TextModel
from serving.planner.collectives import collectives_of
from sharding.mesh import make_mesh
from tests.models.forward import dense_states
from tests.sharding.eight_devices.tiny_engine import (
    CONFIG,
    LAYERS,
    LONGEST,
    SEQUENCES,
    TOKENS,
    VOCAB,
    Stream,
    executor,
    family,
    serve,
    ties,
)

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")


@pytest.fixture(scope="module")
def eight() -> Executor:
    return executor("LlamaForCausalLM", {"tensor": 8})


@pytest.fixture(scope="module")
def alone() -> list[Stream]:
    return serve(executor("LlamaForCausalLM", {}))


def test_eight_devices_give_the_tokens_of_one(eight: Executor, alone: list[Stream]) -> None:
    assert [len(stream.tokens) for stream in alone] == [12] * 4
    assert len(alone[1].prompt_scores) == 11
    assert ties(alone, serve(eight)) <= 1


def test_data_shards_of_a_pipeline_give_the_tokens_of_one_device(alone: list[Stream]) -> None:
    split = executor("LlamaForCausalLM", {"data": 2, "pipeline": 2, "tensor": 2})
    assert ties(alone, serve(split, lanes=2)) <= 1


def test_hidden_states_split_over_tokens_give_the_tokens_of_one_device(alone: list[Stream]) -> None:
    split = executor("LlamaForCausalLM", {"data": 2, "expert": 2, "tensor": 2}, sequence_parallel=True)
    assert ties(alone, serve(split)) <= 1
    (program,) = split.programs.forward.values()
    assert collectives(program)["reduce-scatter"] == 2 * LAYERS


def test_data_shards_of_a_dense_model_send_each_other_no_hidden_states(alone: list[Stream]) -> None:
    split = executor("LlamaForCausalLM", {"data": 4, "tensor": 2})
    assert ties(alone, serve(split)) <= 1
    (program,) = split.programs.forward.values()
    text = program.as_text()
    assert text is not None
    found = collectives_of(text, LAYERS)
    hidden = TOKENS * CONFIG["hidden_size"] * 4
    large = {one: count for one, count in found.items() if one.size >= hidden}
    assert {(one.kind, one.group) for one in large} == {("all-reduce", 2)}
    assert sum(large.values()) == 2 * LAYERS + 1
    assert max(one.size for one in found if one not in large) < hidden / 4  # tokens, and what says where they go


def test_qwen3_gives_the_tokens_of_one_device() -> None:
    one, eight = (executor("Qwen3ForCausalLM", sizes, layers="stacked") for sizes in ({}, {"tensor": 8}))
    assert ties(serve(one), serve(eight)) <= 1


def collectives(program: jax.stages.Compiled) -> Counter[str]:
    names = "|".join(COLLECTIVES)
    return Counter(re.findall(rf" ({names})(?:-start)?\(", program.as_text()))


def test_a_layer_costs_two_all_reduces(eight: Executor) -> None:
    for program in eight.programs.forward.values():
        # One more gathers the embeddings' parts, two find the greedy token.
        assert collectives(program) == {"all-reduce": 2 * LAYERS + 3}


def test_logits_are_gathered_once_by_the_programs_that_need_them(eight: Executor) -> None:
    for programs in (eight.programs.sample, eight.programs.score, eight.programs.score_prompt):
        for program in programs.values():
            assert collectives(program) == {"all-gather": 1}
    assert collectives(eight.programs.admit) == {}


def test_pages_are_split_by_head_and_written_in_place(eight: Executor) -> None:
    """Two KV heads on eight devices: each device has a copy of the one that its query head reads."""
    assert eight.pool.shape[3] == 2 * 8
    part = eight.pool.sharding.shard_shape(eight.pool.shape)
    assert part[3] == 2
    for program in eight.programs.forward.values():
        assert program.memory_analysis().alias_size_in_bytes >= math.prod(part) * 4
        shape = ",".join(map(str, part))
        assert not re.findall(rf"= f32\[{shape}\]\S* copy\(", program.as_text())


def test_serving_compiles_nothing(eight: Executor) -> None:
    compiled: list[str] = []

    def note(event: str, seconds: float, **_: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    serve(eight)
    jax.monitoring.register_event_duration_secs_listener(note)
    jax.jit(lambda x: x * 3)(1.0)
    assert compiled, "compiling makes no event, so nothing would be shown"
    compiled.clear()
    serve(eight)
    assert not compiled


def test_texts_have_the_vectors_of_one_device(eight: Executor) -> None:
    facts = TextFacts(dimensions=CONFIG["hidden_size"], vocab_size=VOCAB, max_tokens=LONGEST)
    texts = tuple(tuple(np.random.default_rng(n).integers(0, VOCAB, n).tolist()) for n in (3, 30))
    eight.pooler = Pooler(eight.programs, SEQUENCES, make_mesh({"tensor": 8}), unit=True)

    async def embedded() -> np.ndarray:
        deployment = Deployment(name="tiny", model=ModelConfig(checkpoint=Path("none")))
        text_model = TextModel(pooling=Pooling.MEAN, unit=True, facts=facts)
        engine = start_local_engine(deployment, eight, startup_seconds=0.0, text_model=text_model)
        assert engine.model_embedder is not None
        try:
            return await engine.model_embedder.embed(EmbedRequest(request_id="texts", texts=texts))
        finally:
            await engine.close()

    found = family("LlamaForCausalLM")
    parsed = found.parse(CONFIG | {"architectures": ["LlamaForCausalLM"]})
    model = found.build(parsed, jnp.dtype("float32"), layers="list")
    for text, vector in zip(texts, asyncio.run(embedded()), strict=True):
        mean = dense_states(model, np.array(text)).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-4)

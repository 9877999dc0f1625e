"""Tiny models of every dense family on a mesh, and the whole engine around them."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from models.interface import Family, LayerForm
from models.registry import FAMILIES
from models.split_experts import Wish
from models.stages import on_mesh
from pallas_kernels.dispatch import attention_body
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.executor import Executor
from serving.engine.lanes import LaneExecutor
from serving.engine.limits import ExecutorLimits
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.request import GenerateRequest, SamplingParams, TokenEvent
from sharding.mesh import make_mesh
from sharding.params import placement_of

VOCAB, LAYERS, LONGEST, PAGE, PAGES, SEQUENCES, TOKENS = 131, 2, 64, 8, 64, 4, 8
ROUNDING = 1e-4  # of a log-probability: two tokens nearer than this may change places with the order of a sum

# Eight devices divide neither the vocabulary nor the feed-forward width, and there are fewer KV heads than devices.
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 45,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    # Of families with routed experts.
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def family(name: str) -> Family:
    return next(one for one in FAMILIES if name in one.architectures)


def executor(
    name: str,
    sizes: dict[str, int],
    *,
    layers: LayerForm = "list",
    exchange: Wish = "auto",
    sequence_parallel: bool = False,
    **config: Any,
) -> Executor:
    """A model of the architecture `name` on the mesh, with the same random weights each time."""
    found = family(name)
    parsed = found.parse(CONFIG | config | {"architectures": [name]})
    mesh, shape = make_mesh(sizes), found.shape(parsed)
    model = found.build(parsed, jnp.dtype("float32"), layers=layers)
    limits = ExecutorLimits(
        max_num_seqs=max(1, SEQUENCES // (sizes.get("data", 1) * sizes.get("pipeline", 1))),
        max_model_len=LONGEST,
        page_size=PAGE,
        num_pages=PAGES,
        token_buckets=(TOKENS,),
        shards=sizes.get("data", 1),
        sequence_parallel_tokens=1 if sequence_parallel else 0,
    )
    placed = on_mesh(model, placement_of(mesh, shape.num_heads, shape.num_kv_heads))
    body = attention_body("reference")
    return Executor(placed, shape, limits, body, jnp.dtype("float32"), mesh=mesh, expert_exchange=exchange)


def requests() -> list[GenerateRequest]:
    """Two greedy ones, one of them with its prompt's scores, and two that draw; prompts longer than a step."""
    greedy = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2)
    drawn = SamplingParams(temperature=0.9, top_k=20, seed=5, repetition_penalty=1.2, max_tokens=12)
    kinds = [greedy, dataclasses.replace(greedy, prompt_logprobs=1), drawn, dataclasses.replace(drawn, seed=6)]
    made = []
    for i, sampling in enumerate(kinds):
        prompt = np.random.default_rng(i).integers(0, VOCAB, 5 + 7 * i).tolist()
        made.append(GenerateRequest(request_id=str(i), prompt_token_ids=tuple(prompt), sampling=sampling))
    return made


@dataclasses.dataclass
class Stream:
    tokens: list[int] = dataclasses.field(default_factory=list)
    gaps: list[float] = dataclasses.field(default_factory=list)  # between the two best, where they were asked for
    prompt_scores: list[float] = dataclasses.field(default_factory=list)


def serve(one: Executor, lanes: int = 1) -> list[Stream]:
    """What each of `requests` gets, all of them together through the whole engine."""
    whole = one if lanes == 1 else LaneExecutor([one, *(one.beside() for _ in range(1, lanes))])
    model = ModelConfig(checkpoint=Path("none"))
    deployment = Deployment(name="tiny", model=model, engine=EngineConfig(step_timeout_seconds=600.0))
    return asyncio.run(_served(start_local_engine(deployment, whole, startup_seconds=0.0)))


async def _served(engine: LocalEngine) -> list[Stream]:
    async def stream(request: GenerateRequest) -> Stream:
        found = Stream()
        async for event in engine.generate(request):
            _append(found, event)
        return found

    try:
        return await asyncio.gather(*map(stream, requests()))
    finally:
        await engine.close()


def _append(stream: Stream, event: TokenEvent) -> None:
    stream.tokens += event.token_ids
    stream.gaps += [scored.top_logprobs[0] - scored.top_logprobs[1] for scored in event.logprobs or ()]
    stream.prompt_scores += [scored.logprob for scored in event.prompt_logprobs or ()]


def ties(expected: list[Stream], found: list[Stream]) -> int:
    """How many streams part from the expected ones at two tokens that are as likely. Any other difference fails."""
    count = 0
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got.prompt_scores, want.prompt_scores, atol=1e-4)
        if got.tokens == want.tokens:
            continue
        at = next(i for i, pair in enumerate(zip(want.tokens, got.tokens, strict=True)) if pair[0] != pair[1])
        assert want.gaps, f"token {at} of a stream that draws changed: {want.tokens} became {got.tokens}"
        assert want.gaps[at] < ROUNDING, f"token {at} changed over a gap of {want.gaps[at]}"
        count += 1
    return count

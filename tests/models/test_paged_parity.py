"""A family over pages, in ragged steps, has the logits of the hub's own library at every token."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array

from models import checkpoint
from models.interface import Model, ModelShape
from pallas_kernels.ragged import AttentionOptions, Pool, RaggedBatch
from pallas_kernels.reference.paged_attention import paged_attention
from tests.models import hub_checkpoints
from tests.models.test_parity import DEEPSEEK, LLAMA4
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

TOKENS, ROWS, PAGE_SIZE, NUM_PAGES, WIDTH = 32, 4, 8, 64, 16
PROMPTS, NEW = (30, 1, 23), 20  # tokens; all end past the windows and the boundary below

GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": 11, "num_hidden_layers": 3}
SHORT_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 1.3 * i for i in range(8)],
}


class PagedModel:
    """Steps of one token bucket, over a pool of pages that begins as NaN."""

    def __init__(self, model: Model, shape: ModelShape) -> None:
        graph, state = nnx.split(model)
        leaves, tree = jax.tree.flatten(state)
        self._weights = leaves
        rows = 2 * shape.num_kv_heads if shape.value_dim is None else 1
        self._pool = jnp.full((NUM_PAGES, shape.num_layers, PAGE_SIZE, rows, shape.head_dim), jnp.nan)
        self._pages = PagedSequences(np.random.default_rng(3), NUM_PAGES, PAGE_SIZE)

        def step(weights: list[Array], pool: Array, token_ids: Array, batch: RaggedBatch) -> tuple[Array, Array]:
            def attend(
                cache: Pool,
                layer: Array | int,
                q: Array,
                k: Array,
                v: Array | None,
                options: AttentionOptions,
                *,
                sinks: Array | None = None,
                window: Array | int | None = None,
            ) -> tuple[Pool, Array]:
                out, cache = paged_attention(q, k, v, cache, layer, batch, options, sinks, window)
                return cache, out

            merged = nnx.merge(graph, jax.tree.unflatten(tree, weights))
            hidden, pool = merged(token_ids, batch.positions, pool, attend)
            return pool, merged.logits(hidden)

        self._step = jax.jit(step, donate_argnums=1)

    def begin(self, capacity: int) -> PagedSequence:
        return self._pages.begin(capacity)

    def run(self, steps: list[tuple[PagedSequence, np.ndarray]], num_decode: int) -> list[np.ndarray]:
        """The logits [n, V] of each sequence's n new tokens."""
        counts = [(sequence, len(tokens)) for sequence, tokens in steps]
        batch = self._pages.batch(counts, num_decode=num_decode, tokens=TOKENS, rows=ROWS, width=WIDTH)
        flat = np.zeros(TOKENS, np.int32)
        ends = np.cumsum([len(tokens) for _, tokens in steps])
        flat[: ends[-1]] = np.concatenate([tokens for _, tokens in steps])
        self._pool, logits = self._step(self._weights, self._pool, jnp.asarray(flat), batch)
        for sequence, count in counts:
            sequence.length += count
        return np.split(np.asarray(logits)[: ends[-1]], ends[:-1])


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("LlamaForCausalLM", {"attention_bias": True}),
        ("Qwen3ForCausalLM", {"num_attention_heads": 8, "tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("MistralForCausalLM", {"sliding_window": 11}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 1.5}),
        ("Gemma3ForCausalLM", {**GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
        ("Phi3ForCausalLM", {"rope_parameters": SHORT_LONG, "original_max_position_embeddings": 20}),
        ("Olmo3ForCausalLM", {"num_hidden_layers": 4, "sliding_window": 11}),
        ("Glm4ForCausalLM", {}),
        ("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": 11}),
        ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 11}),
        ("DeepseekV3ForCausalLM", DEEPSEEK),
        ("Llama4ForCausalLM", LLAMA4),
        ("Qwen3MoeForCausalLM", {"num_experts": 8, "num_hidden_layers": 4, "mlp_only_layers": [0, 2]}),
    ],
)
def test_chunked_prefill_among_decoding_sequences_gives_the_hubs_logits(
    tmp_path: Path, architecture: str, fields: dict[str, Any]
) -> None:
    reference = hub_checkpoints.model(architecture, **fields)
    model, shape, _ = checkpoint.load(hub_checkpoints.write(reference, tmp_path), jnp.float32)
    paged = PagedModel(model, shape)
    random = np.random.default_rng(9)
    texts = [random.integers(0, shape.vocab_size, count + NEW).astype(np.int32) for count in PROMPTS]
    live = [paged.begin(len(text)) for text in texts]
    seen: list[list[np.ndarray]] = [[] for _ in texts]
    while any(sequence.length < len(text) for sequence, text in zip(live, texts, strict=True)):
        decoding, chunks, room = [], [], TOKENS - ROWS
        for i, (sequence, text, prompt) in enumerate(zip(live, texts, PROMPTS, strict=True)):
            if prompt <= sequence.length < len(text):
                decoding.append((i, text[sequence.length : sequence.length + 1]))
            elif sequence.length < prompt:
                count = min(int(random.integers(1, 14)), room, prompt - sequence.length)
                chunks.append((i, text[sequence.length : sequence.length + count]))
                room -= count
        steps = decoding + chunks
        for (i, _), logits in zip(steps, paged.run([(live[i], t) for i, t in steps], len(decoding)), strict=True):
            seen[i].append(logits)
    for text, parts in zip(texts, seen, strict=True):
        right = hub_checkpoints.logits(reference, text)
        np.testing.assert_allclose(np.concatenate(parts), right, atol=1e-4 * np.abs(right).max())

"""Adapters beside weights that are split over devices give what one device gives."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.adapted_array import AdapterProduct
from models.adapters import adapter_rows, lay_out
from models.dense import dense_attend
from models.quantization import Products, at_load, quantize_model
from models.registry import family_of
from models.split_experts import split_experts
from sharding.mesh import make_mesh
from sharding.params import place_model, placement_of
from tests.fakes.tiny_model import CONFIG

TOKENS, SLOTS, RANK = 16, 3, 4
LLAMA = {"architectures": ["LlamaForCausalLM"]}
ROUTED = {  # adapters are beside its attention
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 1,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}


def logits(kind: Mapping[str, Any], sizes: Mapping[str, int], *, quantized: bool) -> np.ndarray:
    """[T, V] of tokens that have each adapter or none, on a mesh of these sizes."""
    fields = CONFIG | kind
    family = family_of(fields)
    config = family.parse(fields)
    planned, model = family.build(config, jnp.float32, seed=None), family.build(config, jnp.float32)
    mesh = make_mesh(sizes)
    split_experts(model, mesh)
    if quantized:
        for made in (planned, model):
            quantize_model(made, at_load("int8"), Products())
    layout = lay_out(planned, family.tensors(config), slots=SLOTS, max_rank=RANK, dtype=jnp.float32)
    placement = placement_of(mesh, 4, 2)
    random = np.random.default_rng(1)
    stacks = layout.empty(placement)
    for slot in range(SLOTS):
        matrices = {}
        for name, target in layout.targets.items():
            out, into = target.shape
            matrices[name] = (random.standard_normal((RANK, into)) / 8, random.standard_normal((out, RANK)) / 2)
        one = layout.placed(layout.on_host(matrices), placement)
        stacks = layout.written(stacks, one, jnp.asarray(slot))
    graph, state = nnx.split(place_model(model, placement))
    shards, product = mesh.shape["data"], AdapterProduct(mesh)

    @jax.jit
    def run(state, stacks, token_ids, slots):
        merged = nnx.merge(graph, state)
        layout.attach(merged, stacks, adapter_rows(slots.reshape(shards, -1), SLOTS), product)
        hidden, _ = merged(token_ids, jnp.arange(TOKENS), None, dense_attend(1, TOKENS))
        return merged.logits(hidden)[:, : CONFIG["vocab_size"]]

    slots = np.array([0, 2, -1, 1, 1, 1, -1, 0, 2, 2, 2, 2, -1, -1, 0, 1], np.int32)
    return np.asarray(run(state, stacks, jnp.asarray(random.integers(0, 131, TOKENS)), jnp.asarray(slots)))


@pytest.mark.parametrize(
    ("kind", "sizes", "quantized"),
    [
        (LLAMA, {"expert": 2, "tensor": 2}, False),
        (LLAMA, {"data": 2, "tensor": 2}, True),
        (ROUTED, {"data": 2, "expert": 2, "tensor": 2}, False),
    ],
)
def test_split_adapters_equal_whole_ones(kind: Mapping[str, Any], sizes: Mapping[str, int], quantized: bool) -> None:
    whole, split = (logits(kind, of, quantized=quantized) for of in ({"tensor": 1}, sizes))
    np.testing.assert_allclose(split, whole, atol=2e-5 * np.abs(whole).max())

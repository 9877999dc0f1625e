"""Weights in fewer bits compute on eight devices what they compute on one: scales are split like their weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from jax.sharding import Mesh

from models.dense import dense_attend
from models.quantization import Products, QuantizationError, at_load, quantize_model
from models.split_experts import split_experts
from sharding.mesh import make_mesh
from sharding.params import place_model, placement_of
from tests.sharding.eight_devices.tiny_engine import CONFIG, VOCAB, family

TOKENS = 8
# Groups of 4 bits need rows that divide; the kinds with a scale a column are padded like weights in full.
EVEN = {"intermediate_size": 128, "moe_intermediate_size": 64, "head_dim": 16}


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("LlamaForCausalLM", "int4", EVEN),
        ("MixtralForCausalLM", "int4", EVEN),
        ("DeepseekV3ForCausalLM", "fp8", {}),
    ],
)
def test_eight_devices_compute_what_one_does(name: str, kind: Any, config: dict[str, Any]) -> None:
    sizes = {"tensor": 8} if name == "LlamaForCausalLM" else {"tensor": 4, "expert": 2}
    mesh = make_mesh(sizes)
    one, _ = computed(name, kind, config, mesh, make_mesh({}))
    eight, model = computed(name, kind, config, mesh, mesh)
    assert np.ptp(one) > 0.1
    np.testing.assert_allclose(eight, one, atol=1e-4)
    scales = [leaf for path, leaf in nnx.to_flat_state(nnx.state(model)) if path[-1] == "scales"]
    split = [leaf.get_value() for leaf in scales if any(leaf.get_value().sharding.spec)]
    assert all(leaf.sharding.shard_shape(leaf.shape) != leaf.shape for leaf in split)
    assert len(split) >= 2


def computed(name: str, kind: Any, config: dict[str, Any], groups_of: Mesh, mesh: Mesh) -> tuple[np.ndarray, Any]:
    """(logits, the model on `mesh`), its groups as small as `groups_of` needs them."""
    found = family(name)
    parsed = found.parse(CONFIG | config | {"architectures": [name], "num_hidden_layers": 2})
    shape = found.shape(parsed)
    model = found.build(parsed, jnp.dtype("float32"))
    quantize_model(model, at_load(kind), Products(), groups_of)
    model = place_model(model, placement_of(mesh, shape.num_heads, shape.num_kv_heads))
    split_experts(model, mesh)
    ids = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, TOKENS), jnp.int32)

    @jax.jit
    def forward(ids: Array) -> Array:
        hidden, _ = model(ids, jnp.arange(TOKENS), None, dense_attend(1, TOKENS))
        return model.logits(hidden)[:, :VOCAB]

    return np.asarray(forward(ids)), model


def test_a_mesh_that_cuts_through_4_bits_is_refused() -> None:
    found = family("LlamaForCausalLM")
    model = found.build(found.parse(CONFIG), jnp.dtype("float32"), seed=None)
    with pytest.raises(QuantizationError, match="45 rows of 4 bits cannot be split 8 ways"):
        quantize_model(model, at_load("int4"), Products(), make_mesh({"tensor": 8}))

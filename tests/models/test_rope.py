"""Rope against the hub's own library, far past the positions that a scaled checkpoint began with."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from models.errors import CheckpointError
from models.fields import Fields
from models.rope import read_rope

POSITIONS = np.array([0, 1, 7, 63, 64, 65, 511, 512, 1000, 4095])
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, its own ramp": {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    "yarn, attention factor": {**YARN, "attention_factor": 0.7},
    "yarn, magnitudes": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, one magnitude": {**YARN, "mscale": 0.7},
}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10000.0), (128, 1e6), (16, 10000.0)])
def test_vectors_turn_as_in_the_hubs_library(scaling: dict[str, Any], head_dim: int, theta: float) -> None:
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=4096,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    q = np.random.default_rng(0).normal(size=(len(POSITIONS), 2, head_dim)).astype(np.float32)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(POSITIONS)[None])
    heads_first = torch.from_numpy(q).transpose(0, 1)[None]
    turned, _ = apply_rotary_pos_emb(heads_first, heads_first, cos, sin)
    rope = read_rope(Fields({"rope_parameters": {**scaling, "rope_theta": theta}}), head_dim, 4096)
    found = rope(jnp.asarray(q), jnp.asarray(POSITIONS))
    np.testing.assert_allclose(np.asarray(found), turned[0].transpose(0, 1).numpy(), atol=5e-3)
    near = POSITIONS < 100
    np.testing.assert_allclose(np.asarray(found)[near], turned[0].transpose(0, 1).numpy()[near], atol=1e-4)


def test_old_and_new_field_names_say_the_same() -> None:
    new = read_rope(Fields({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}), 64, 4096)
    old = {**LLAMA3, "type": LLAMA3["rope_type"]}
    del old["rope_type"]
    assert read_rope(Fields({"rope_theta": 5e5, "rope_scaling": old}), 64, 4096) == new


def test_part_of_a_head_may_stay_as_it_is() -> None:
    rope = read_rope(Fields({"partial_rotary_factor": 0.25}), 64, 128)
    x = np.random.default_rng(0).normal(size=(3, 2, 64)).astype(np.float32)
    turned = np.asarray(rope(jnp.asarray(x), jnp.asarray([1, 2, 3])))
    np.testing.assert_array_equal(turned[..., 16:], x[..., 16:])
    assert not np.isclose(turned[..., :16], x[..., :16]).all()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.type is 'su'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor is 0"),
        ({"rope_scaling": [2]}, "rope_scaling is [2]"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters.full_attention"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
        ({"rope_theta": "1e6"}, "rope_theta is '1e6'"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor is 0.4"),
    ],
)
def test_what_is_not_offered_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        read_rope(Fields(config), 64, 4096)
    assert named in str(refusal.value)


def test_an_odd_head_cannot_turn() -> None:
    with pytest.raises(CheckpointError, match="head_dim"):
        read_rope(Fields({}), 15, 4096)

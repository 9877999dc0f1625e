"""Rope against the hub's own library, far past the positions that a scaled checkpoint began with."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from models.errors import CheckpointError
from models.fields import Fields
from models.rope import LayerRopes, LongRope, Rope, read_layer_ropes, read_rope

POSITIONS = np.array([0, 1, 7, 63, 64, 65, 511, 512, 1000, 4095])
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
LONG = {
    "type": "su",
    "short_factor": [1.0 + i / 32 for i in range(32)],
    "long_factor": [2.0 + i for i in range(32)],
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
    assert isinstance(rope, Rope)
    found = rope(jnp.asarray(q), jnp.asarray(POSITIONS))
    np.testing.assert_allclose(np.asarray(found), turned[0].transpose(0, 1).numpy(), atol=5e-3)
    near = POSITIONS < 100
    np.testing.assert_allclose(np.asarray(found)[near], turned[0].transpose(0, 1).numpy()[near], atol=1e-4)


@pytest.mark.parametrize("scaling", [YARN, {"rope_type": "linear", "factor": 8.0}])
def test_a_scaling_that_was_added_turns_alike_past_what_the_model_was_made_for(scaling: dict[str, Any]) -> None:
    """As the pages of Qwen2.5 and Qwen3 say to: max_position_embeddings stays what it was."""
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=512,
        rope_parameters={**scaling, "rope_theta": 1e6},
    )
    rope = read_rope(Fields({"rope_scaling": scaling, "rope_theta": 1e6}), 64, 512)
    assert isinstance(rope, Rope)
    theirs = LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(rope.inverse_frequencies, theirs.inv_freq.numpy(), rtol=1e-6)
    assert rope.factor == pytest.approx(theirs.attention_scaling)
    assert rope == read_rope(Fields({"rope_scaling": scaling, "rope_theta": 1e6}), 64, 4096)


def test_yarn_without_a_factor_reaches_what_the_model_was_made_for() -> None:
    bare = {name: value for name, value in YARN.items() if name != "factor"}
    whole = read_rope(Fields({"rope_scaling": YARN}), 64, 4096)
    assert read_rope(Fields({"rope_scaling": bare}), 64, 4096) == whole


def test_old_and_new_field_names_say_the_same() -> None:
    new = read_rope(Fields({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}), 64, 4096)
    old = {**LLAMA3, "type": LLAMA3["rope_type"]}
    del old["rope_type"]
    assert read_rope(Fields({"rope_theta": 5e5, "rope_scaling": old}), 64, 4096) == new


def test_both_field_names_may_say_the_same() -> None:
    newer = {**LLAMA3, "rope_theta": 5e5}
    alone = read_rope(Fields({"rope_parameters": newer}), 64, 4096)
    assert read_rope(Fields({"rope_parameters": newer, "rope_scaling": LLAMA3}), 64, 4096) == alone
    renamed = {"type": "llama3", **{name: value for name, value in LLAMA3.items() if name != "rope_type"}}
    assert read_rope(Fields({"rope_parameters": newer, "rope_scaling": renamed}), 64, 4096) == alone
    empty: dict[str, Any] = {"rope_parameters": {}, "rope_scaling": LLAMA3, "rope_theta": 5e5}
    assert read_rope(Fields(empty), 64, 4096) == alone


def test_longropes_first_name_says_the_same() -> None:
    older = {**LONG, "original_max_position_embeddings": 512, "type": "su"}
    newer = {name: value for name, value in older.items() if name != "type"} | {"rope_type": "longrope"}
    alone = read_rope(Fields({"rope_parameters": newer}), 64, 4096)
    assert read_rope(Fields({"rope_parameters": newer, "rope_scaling": older}), 64, 4096) == alone


def test_what_yarns_release_says_of_the_model_changes_nothing() -> None:
    plain = read_rope(Fields({"rope_scaling": YARN}), 64, 4096)
    assert read_rope(Fields({"rope_scaling": {**YARN, "finetuned": True}}), 64, 4096) == plain


def test_part_of_a_head_may_stay_as_it_is() -> None:
    rope = read_rope(Fields({"partial_rotary_factor": 0.25}), 64, 128, share=1.0)
    x = np.random.default_rng(0).normal(size=(3, 2, 64)).astype(np.float32)
    turned = np.asarray(rope.at(jnp.asarray([1, 2, 3])).of(0)(jnp.asarray(x)))
    np.testing.assert_array_equal(turned[..., 16:], x[..., 16:])
    assert not np.isclose(turned[..., :16], x[..., :16]).all()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_scaling.rope_type is 'proportional'"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_scaling.type is 'mrope'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.short_factor is missing"),
        ({"rope_scaling": {**LONG, "long_factor": [1.0] * 31}}, "rope_scaling.long_factor is [1.0"),
        ({"rope_scaling": {**LONG, "long_factor": [0.0] * 32}}, "a list of 32 numbers above 0"),
        ({"rope_scaling": {**LONG, "type": "yarn"}}, "rope_scaling.type is 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor is 0"),
        ({"rope_scaling": [2]}, "rope_scaling is [2]"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters.full_attention"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
        ({"rope_theta": "1e6"}, "rope_theta is '1e6'"),
        ({"rope_theta": 10**400}, "it must be a finite number"),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta is 1.0; it must be a number above 1"),
        ({"rope_scaling": {**LONG, "original_max_position_embeddings": 1}}, "original_max_position_embeddings is 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; it must be 1.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": YARN}, "rope_scaling is {"),
        ({"rope_parameters": YARN, "rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling is {"),
        ({"rope_parameters": YARN, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling is {"),
        ({"rope_parameters": YARN, "rope_scaling": {"type": "default"}}, "rope_scaling is {"),
    ],
)
def test_what_is_not_offered_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        read_rope(Fields(config), 64, 4096)
    assert named in str(refusal.value)


@pytest.mark.parametrize("share", [1.5, 0.4])
def test_a_share_of_a_head_that_cannot_turn_is_named(share: float) -> None:
    with pytest.raises(CheckpointError, match=f"partial_rotary_factor is {share}; it must be a share of head_dim 64"):
        read_rope(Fields({"partial_rotary_factor": share}), 64, 4096, share=1.0)


def test_whole_heads_turn_where_a_share_of_1_is_said() -> None:
    """The hub's library reads the share for a few architectures; of the others no head turns in part."""
    assert read_rope(Fields({"partial_rotary_factor": 1}), 64, 128) == read_rope(Fields({}), 64, 128)


def test_an_odd_head_cannot_turn() -> None:
    with pytest.raises(CheckpointError, match="head_dim"):
        read_rope(Fields({}), 15, 4096)


def test_the_longest_sequence_chooses_the_rope_of_all() -> None:
    """The list of factors and, from where on it holds, 512; the factor on both is that of 4096 over 512."""
    rope = read_rope(Fields({"rope_scaling": LONG, "original_max_position_embeddings": 512}), 64, 4096)
    assert isinstance(rope, LongRope)
    assert rope.short.factor == rope.long.factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(512)))
    positions = jnp.asarray([3])
    for max_length, right in ((512, rope.short), (513, rope.long), (rope.max_length, rope.long)):
        chosen = dataclasses.replace(rope, max_length=max_length).at(positions)
        np.testing.assert_array_equal(chosen.sin, right.at(positions).sin)


def test_adjacent_dimensions_turn_together_where_the_checkpoint_has_them_so() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 64)).astype(np.float32)
    halves = np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
    positions = jnp.asarray([1, 2, 300])
    adjacent = read_rope(Fields({}), 64, 128, interleaved=True).at(positions).of(0)(jnp.asarray(x))
    apart = read_rope(Fields({}), 64, 128).at(positions).of(0)(jnp.asarray(halves))
    np.testing.assert_array_equal(adjacent, np.stack(np.split(np.asarray(apart), 2, axis=-1), axis=-1).reshape(x.shape))


LOCAL = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}


def test_layers_that_slide_have_their_own_rope_in_old_and_new_files() -> None:
    old = read_layer_ropes(Fields(LOCAL), 64, 4096, [True, False], theta=2.0, local_theta=2.0)
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = read_layer_ropes(Fields({"rope_parameters": nested}), 64, 4096, [True, False], theta=2.0, local_theta=2.0)
    everywhere = read_rope(Fields({"rope_parameters": nested["full_attention"]}), 64, 4096)
    sliding = read_rope(Fields({"rope_theta": 1e4}), 64, 4096)
    assert old == new == LayerRopes((everywhere, sliding), (1, 0))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="absent beside rope_parameters"):
        read_layer_ropes(Fields(LOCAL | {"rope_parameters": nested}), 64, 4096, [True], theta=2.0, local_theta=2.0)


def test_a_traced_layer_has_the_rope_of_that_layer() -> None:
    ropes = read_layer_ropes(Fields(LOCAL), 64, 4096, [True, True, False], theta=2.0, local_theta=2.0)
    turns = ropes.at(jnp.asarray([1, 7, 100]))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 64)), jnp.float32)
    for layer, rope in enumerate(ropes.choice):
        right = ropes.ropes[rope](x, jnp.asarray([1, 7, 100]))
        np.testing.assert_array_equal(turns.of(layer)(x), right)
        np.testing.assert_array_equal(turns.of(jnp.asarray(layer))(x), right)


def test_layers_with_ropes_of_their_own_cannot_have_longrope() -> None:
    fields = Fields({"rope_scaling": LONG})
    with pytest.raises(CheckpointError, match="longrope"):
        read_layer_ropes(fields, 64, 4096, [True, False], theta=1e4, local_theta=1e4)

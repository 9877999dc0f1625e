"""Weights under the names of a decoder that was saved without what gives logits, as models for embedding are."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import checkpoint
from models.errors import CheckpointError
from tests.models import tiny_checkpoint

TIED = {**tiny_checkpoint.CONFIG, "tie_word_embeddings": True}


def test_names_without_their_model_are_those_weights(tmp_path: Path) -> None:
    named = tiny_checkpoint.weights(TIED)
    (tmp_path / "bare").mkdir()
    bare = {name.removeprefix("model."): values for name, values in named.items()}
    folders = [
        tiny_checkpoint.write(tmp_path, named, TIED),
        tiny_checkpoint.write(tmp_path / "bare", bare, TIED),
    ]
    whole, found = (jax.tree.leaves(nnx.state(checkpoint.load(folder, jnp.float32)[0])) for folder in folders)
    for wanted, leaf in zip(whole, found, strict=True):
        np.testing.assert_array_equal(leaf, wanted)


@pytest.mark.parametrize("shards", [0, 3])
def test_tied_vectors_may_lie_under_the_heads_name(tmp_path: Path, shards: int) -> None:
    named = tiny_checkpoint.weights(TIED)
    folders = [tmp_path / name for name in ("whole", "head")]
    for folder in folders:
        folder.mkdir()
    tiny_checkpoint.write(folders[0], named, TIED)
    named["lm_head.weight"] = named.pop("model.embed_tokens.weight")
    tiny_checkpoint.write(folders[1], named, TIED, shards)
    whole, found = (jax.tree.leaves(nnx.state(checkpoint.load(folder, jnp.float32)[0])) for folder in folders)
    for wanted, leaf in zip(whole, found, strict=True):
        np.testing.assert_array_equal(leaf, wanted)


@pytest.mark.parametrize("config", [TIED, tiny_checkpoint.CONFIG], ids=["tied", "not tied"])
def test_vectors_that_lie_nowhere_are_missed(tmp_path: Path, config: dict[str, Any]) -> None:
    named = tiny_checkpoint.weights(config)
    del named["model.embed_tokens.weight"]
    with pytest.raises(CheckpointError, match=r"tensor model\.embed_tokens\.weight is missing"):
        checkpoint.load(tiny_checkpoint.write(tmp_path, named, config), jnp.float32)


def test_tied_vectors_of_another_shape_are_named(tmp_path: Path) -> None:
    named = tiny_checkpoint.weights(TIED)
    named["lm_head.weight"] = named.pop("model.embed_tokens.weight")[:-1]
    with pytest.raises(CheckpointError, match=r"tensor lm_head\.weight has shape \[30, 16\]"):
        checkpoint.load(tiny_checkpoint.write(tmp_path, named, TIED), jnp.float32)


def test_a_head_that_was_left_out_is_missed(tmp_path: Path) -> None:
    named = tiny_checkpoint.weights()
    bare = {name.removeprefix("model."): values for name, values in named.items() if name != "lm_head.weight"}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        checkpoint.load(tiny_checkpoint.write(tmp_path, bare), jnp.float32)

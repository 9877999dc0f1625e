"""Weights under the names of a decoder that was saved without what gives logits, as models for embedding are."""

from pathlib import Path

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


def test_a_head_that_was_left_out_is_missed(tmp_path: Path) -> None:
    named = tiny_checkpoint.weights()
    bare = {name.removeprefix("model."): values for name, values in named.items() if name != "lm_head.weight"}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        checkpoint.load(tiny_checkpoint.write(tmp_path, bare), jnp.float32)

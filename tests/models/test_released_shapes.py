"""The models that configs/models describes: each parses by its family, and has as many parameters as its name says."""

import math
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models.registry import family_of

FOLDER = Path(__file__).parents[2] / "configs" / "models"

# Parameters and the share of them that may be missing: names are rounded, and V3's counts leave out what is not served.
PARAMETERS = {
    "deepseek-v3": 671.0e9,
    "gpt-oss-120b": 116.8e9,
    "llama-3.1-8b": 8.03e9,
    "llama-3.3-70b": 70.6e9,
    "mixtral-8x7b": 46.7e9,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-32b": 32.8e9,
}


def test_every_file_is_counted() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_released_model_has_its_parameters_and_a_place_for_each(name: str) -> None:
    config = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    family = family_of(config)
    parsed = family.parse(config)
    model = family.build(parsed, jnp.bfloat16, seed=None)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model)))
    assert abs(count / PARAMETERS[name] - 1) < 0.003
    stored = [tensor for tensor in family.tensors(parsed).values() if tensor is not None]
    assert sum(math.prod(tensor.shape) for tensor in stored) == count


def test_latent_pages_hold_one_row_for_all_heads() -> None:
    config = tomllib.loads((FOLDER / "deepseek-v3.toml").read_text())
    family = family_of(config)
    shape = family.shape(family.parse(config))
    assert (shape.num_kv_heads, shape.head_dim, shape.value_dim) == (1, 576, 512)
    assert (shape.experts, shape.experts_per_token) == (256, 8)

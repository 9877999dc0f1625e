"""What a plan counts of weights and pages in fewer bits, from shapes alone."""

from typing import Any

import jax.numpy as jnp

from models import llama
from models.quantization import Products, at_load
from serving.engine.limits import ExecutorLimits
from serving.planner.compiled import AbstractDeployment, Holdings
from sharding.mesh import one_device
from tests.fakes.tiny_model import CONFIG

LIMITS = ExecutorLimits(max_num_seqs=2, max_model_len=64, page_size=8, num_pages=1, token_buckets=(8,))
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
D, F, H, K, C, L = 256, 512, 4, 2, 64, 2
ROUNDED = L * (D * (H + 2 * K) * C + H * C * D + 3 * D * F)  # numbers in the weights that may be


def holdings(kind: Any = None, pages: Any = None) -> Holdings:
    config = llama.parse(CONFIG | SIZES)
    recipe = None if kind is None else at_load(kind)
    dtypes = {"recipe": recipe, "products": Products(), "cache_dtype": pages}
    return AbstractDeployment(
        llama, config, jnp.dtype("bfloat16"), LIMITS, one_device(), "reference", **dtypes
    ).holdings()


def test_weights_take_their_numbers_and_their_scales() -> None:
    full, eight, four = holdings(), holdings("int8"), holdings("int4")
    columns = L * ((H + 2 * K) * C + D + 2 * F + D)
    assert full.weights - eight.weights == ROUNDED - 4 * columns
    groups = L * (D * (H + 2 * K) * C // 128 + H * C * D // 64 + 3 * D * F // 128)  # a head is a group of 64
    assert full.weights - four.weights == 2 * ROUNDED - ROUNDED // 2 - 4 * groups


def test_parameters_and_operations_stay_what_they_are() -> None:
    full, eight, four = holdings(), holdings("fp8"), holdings("int4")
    assert full.parameters == eight.parameters == four.parameters
    assert full.multiplied == eight.multiplied == four.multiplied > ROUNDED


def test_pages_take_their_numbers_and_their_scales() -> None:
    assert holdings().position == 2 * L * 2 * K * C
    assert holdings(pages=jnp.dtype("int8")).position == L * 2 * K * (C + 4)

"""The TPU's grouped matmul against loops in float64, in Pallas's interpreters."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped import QuantizedExperts, quantized_experts
from pallas_kernels.tpu.grouped_matmul import GroupedTiles, grouped_matmul, refusal
from tests.pallas_kernels.grouped_rows import GROUPS, assert_agrees, draw

D, F = 256, 200  # F ends inside a tile of columns
TILES = GroupedTiles(rows=16, depth=128, columns=128)
interpreted = jax.jit(partial(grouped_matmul, tiles=TILES, interpret=True), static_argnames="preferred_element_type")
TOLERANCE = 2**-8  # of the largest number: the rounding of a bfloat16 result


@pytest.mark.parametrize(("m", "sizes"), GROUPS.values(), ids=GROUPS.keys())
def test_each_row_meets_the_matrix_of_its_expert(m: int, sizes: list[int]) -> None:
    x, weights = draw((m, D), jnp.bfloat16, 0), draw((len(sizes), 2, D, F), jnp.bfloat16, 1)
    assert_agrees(interpreted, x, weights, sizes, TOLERANCE)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize(("group", "depth"), [(None, 128), (None, 512), (128, 512), (256, 128)])
def test_eight_bit_weights_are_scaled_by_their_rows(dtype: Any, group: int | None, depth: int) -> None:
    sizes = [5, 0, 33]
    weights = quantized_experts(draw((3, 512, F), jnp.float32, 1), dtype, group)
    body = partial(grouped_matmul, tiles=GroupedTiles(16, depth, 128), interpret=True)
    assert_agrees(body, draw((40, 512), jnp.bfloat16, 0), weights, sizes, TOLERANCE)


def test_float32_rows_and_results_keep_their_precision() -> None:
    sizes, weights = [7, 0, 20], draw((3, D, F), jnp.float32, 1)
    assert_agrees(interpreted, draw((27, D), jnp.float32, 0), weights, sizes, 1e-6)
    narrow = weights.astype(jnp.bfloat16)
    x = draw((27, D), jnp.bfloat16, 0)
    assert_agrees(interpreted, x, narrow, sizes, 1e-6, preferred_element_type=jnp.float32)


def test_a_stack_of_layers_is_read_from_the_first_expert_of_a_layer() -> None:
    x, stack = draw((20, D), jnp.bfloat16, 0), draw((6, 2, D, F), jnp.bfloat16, 1)
    assert_agrees(interpreted, x, stack, [9, 11], TOLERANCE, first_expert=4)


def test_derived_tiles_fit_any_width() -> None:
    for d, f, sizes in ((96, 40, [3, 30]), (4352, 130, [1, 0, 1])):
        x, weights = draw((sum(sizes), d), jnp.bfloat16, 0), draw((len(sizes), d, f), jnp.bfloat16, 1)
        assert_agrees(partial(grouped_matmul, interpret=True), x, weights, sizes, TOLERANCE)


def test_no_copy_races_another(capsys: pytest.CaptureFixture[str]) -> None:
    sizes, weights = [5, 0, 20, 7], quantized_experts(draw((4, 2, D, F), jnp.float32, 1), jnp.int8)
    body = partial(grouped_matmul, tiles=TILES, interpret=pltpu.InterpretParams(detect_races=True))
    assert_agrees(body, draw((40, D), jnp.bfloat16, 0), weights, sizes, TOLERANCE)
    assert "RACE" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (jnp.zeros((2, 64, 64), jnp.float16), "not float16"),
        (QuantizedExperts(jnp.zeros((2, 64, 64), jnp.bfloat16), jnp.ones((2, 64))), "not bfloat16"),
        (jnp.zeros((1, 4100, 64), jnp.bfloat16), "multiples of 128 beyond 4096, not 4100"),
        (QuantizedExperts(jnp.zeros((2, 64, 64), jnp.int8), jnp.ones((2, 2, 64))), "scales of 128 rows or multiples"),
    ],
)
def test_what_it_cannot_multiply_is_refused_by_name(weights: Any, match: str) -> None:
    d = (weights.values if isinstance(weights, QuantizedExperts) else weights).shape[1]
    with pytest.raises(ValueError, match=match):
        grouped_matmul(jnp.zeros((4, d), jnp.bfloat16), weights, jnp.asarray([4, 0]))
    assert refusal(jax.ShapeDtypeStruct((2, 64, 64), jnp.bfloat16), jnp.bfloat16) is None

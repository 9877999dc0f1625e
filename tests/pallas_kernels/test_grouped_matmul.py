"""The grouped matmul of a CPU, and what its arguments mean, against loops in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped import QuantizedExperts, expert_matrices, group_tiles, most_group_tiles, quantized_experts
from pallas_kernels.reference.grouped_matmul import grouped_matmul
from tests.pallas_kernels.grouped_rows import GROUPS, assert_agrees, draw

D, F = 24, 40


@pytest.mark.parametrize(("m", "sizes"), GROUPS.values(), ids=GROUPS.keys())
def test_each_row_meets_the_matrix_of_its_expert(m: int, sizes: list[int]) -> None:
    weights = draw((len(sizes), D, F), jnp.float32, 1)
    assert_agrees(jax.jit(grouped_matmul), draw((m, D), jnp.float32, 0), weights, sizes, 1e-6)


def test_groups_larger_than_a_tile_are_walked_in_tiles() -> None:
    sizes = [300, 0, 129, 128, 1]
    weights = draw((5, D, F), jnp.float32, 1)
    assert_agrees(jax.jit(grouped_matmul), draw((600, D), jnp.float32, 0), weights, sizes, 1e-6)


def test_sums_are_float32_and_the_result_is_the_dtype_that_is_asked_for() -> None:
    sizes, m = [10, 0, 22], 32
    x, weights = draw((m, 512), jnp.bfloat16, 0), draw((3, 512, F), jnp.bfloat16, 1)
    wide = partial(grouped_matmul, preferred_element_type=jnp.float32)
    assert grouped_matmul(x, weights, jnp.asarray(sizes)).dtype == jnp.bfloat16
    assert wide(x, weights, jnp.asarray(sizes)).dtype == jnp.float32
    assert_agrees(wide, x, weights, sizes, 1e-6)
    assert_agrees(grouped_matmul, x, weights, sizes, 2**-8)


def test_products_of_the_same_rows_lie_side_by_side() -> None:
    sizes = [3, 0, 14, 2]
    assert_agrees(
        jax.jit(grouped_matmul), draw((20, D), jnp.float32, 0), draw((4, 3, D, F), jnp.float32, 1), sizes, 1e-6
    )


def test_a_stack_of_layers_is_read_from_the_first_expert_of_a_layer() -> None:
    sizes = [3, 0, 14, 2]
    x, stack = draw((20, D), jnp.float32, 0), draw((12, D, F), jnp.float32, 1)
    assert_agrees(jax.jit(grouped_matmul), x, stack, sizes, 1e-6, first_expert=8)
    assert_agrees(jax.jit(grouped_matmul), x, stack.reshape(6, 2, D, F), sizes[:2], 1e-6, first_expert=4)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("group", [None, 8])
@pytest.mark.parametrize("products", [(), (2,)])
def test_eight_bit_weights_are_values_times_scales(
    dtype: jnp.dtype, group: int | None, products: tuple[int, ...]
) -> None:
    sizes = [5, 0, 19]
    weights = quantized_experts(draw((3, *products, D, F), jnp.float32, 1), dtype, group)
    assert weights.values.dtype == dtype
    assert_agrees(jax.jit(grouped_matmul), draw((24, D), jnp.float32, 0), weights, sizes, 1e-6)


@pytest.mark.parametrize(("dtype", "error"), [(jnp.int8, 0.5 / 127), (jnp.float8_e4m3fn, 2**-4)])
def test_eight_bits_hold_a_weight_as_well_as_they_can(dtype: jnp.dtype, error: float) -> None:
    weights = draw((2, 64, F), jnp.float32, 1).at[0, :, 0].set(0.0)  # a column of zeros stays zeros
    for group in (None, 16):
        held = quantized_experts(weights, dtype, group)
        flat = expert_matrices(held)
        assert flat.scales is not None
        assert flat.rows_per_scale is not None
        back = flat.values.astype(jnp.float32) * jnp.repeat(flat.scales, flat.rows_per_scale, axis=1)
        largest = jnp.repeat(
            jnp.abs(weights.reshape(2, -1, flat.rows_per_scale, F)).max(axis=2), flat.rows_per_scale, axis=1
        )
        assert (jnp.abs(back - weights) <= error * largest * 1.001).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    values = jnp.zeros((2, D, F), jnp.int8)
    with pytest.raises(ValueError, match=r"scales \[3, 40\] do not fit weights \[2, 24, 40\]"):
        expert_matrices(QuantizedExperts(values, jnp.ones((3, F))))
    with pytest.raises(ValueError, match=r"scales \[2, 7, 40\] do not fit"):
        expert_matrices(QuantizedExperts(values, jnp.ones((2, 7, F))))
    with pytest.raises(ValueError, match=r"not \[24, 40\]"):
        expert_matrices(values[0])
    with pytest.raises(ValueError, match="5 rows a scale do not divide D = 24"):
        quantized_experts(values, jnp.int8, 5)
    with pytest.raises(ValueError, match="not int4"):
        quantized_experts(values, jnp.int4)


@pytest.mark.parametrize(("m", "sizes"), GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_tiles_cover_every_row_of_every_group_once(m: int, sizes: list[int], rows: int) -> None:
    tiles = group_tiles(jnp.asarray(sizes, jnp.int32), m, rows)
    count = int(tiles.num_tiles)
    assert count == sum(-(-size // rows) for size in sizes) <= most_group_tiles(m, len(sizes), rows)
    covered = [
        (int(e), row)
        for e, first, num in zip(tiles.expert[:count], tiles.first_row[:count], tiles.num_rows[:count], strict=True)
        for row in range(int(first), int(first) + int(num))
    ]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    assert covered == [(int(e), row) for row, e in enumerate(owners)]
    assert (tiles.num_rows[count:] == 0).all()

"""The Hopper grouped matmul in jax's GPU interpreter, against loops in float64.

The interpreter runs the warpgroups, barriers, TMA copies and shared memory of the kernel, and tells of races. Layouts
and swizzles only the compiler and a GPU see.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest

from pallas_kernels.gpu.grouped_matmul import GroupedSizes, grouped_matmul
from pallas_kernels.grouped import quantized_experts
from tests.pallas_kernels.grouped_rows import GROUPS, assert_agrees, draw

D, F = 192, 128
# Two programs, so that each has several units in its ring, one after the other.
SIZES = GroupedSizes(rows=16, warpgroups=2, columns=64, steps=2, band=2, programs=2)
TOLERANCE = 2**-7  # of the largest number: the rounding of a bfloat16 result, and of a scaled weight


@pytest.fixture(autouse=True)
def interpreter(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Interprets with race detection, and fails a test that raced."""
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        yield
    out, err = capfd.readouterr()
    assert "RACE DETECTED" not in out + err


def body(sizes: GroupedSizes) -> Any:
    return jax.jit(partial(grouped_matmul, sizes=sizes))


@pytest.mark.parametrize(("m", "sizes"), GROUPS.values(), ids=GROUPS.keys())
def test_each_row_meets_the_matrix_of_its_expert(m: int, sizes: list[int]) -> None:
    x, weights = draw((m, D), jnp.bfloat16, 0), draw((len(sizes), D, F), jnp.bfloat16, 1)
    assert_agrees(body(SIZES), x, weights, sizes, TOLERANCE)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("group", [None, 64])
def test_eight_bit_weights_are_scaled_by_their_rows(dtype: Any, group: int | None) -> None:
    sizes, weights = [5, 0, 33], quantized_experts(draw((3, D, F), jnp.float32, 1), dtype, group)
    assert_agrees(body(SIZES), draw((40, D), jnp.bfloat16, 0), weights, sizes, TOLERANCE)


def test_products_lie_side_by_side_and_a_stack_of_layers_is_read_where_it_lies() -> None:
    x, stack = draw((20, D), jnp.bfloat16, 0), draw((4, 2, D, F), jnp.bfloat16, 1)
    assert_agrees(body(SIZES), x, stack, [9, 11], TOLERANCE, first_expert=2)


@pytest.mark.parametrize(
    "sizes",
    [
        GroupedSizes(rows=128, warpgroups=2, columns=128, steps=3, programs=1),
        GroupedSizes(rows=8, warpgroups=1, columns=64, steps=3, programs=3),
    ],
)
def test_any_sizes_give_the_same(sizes: GroupedSizes) -> None:
    x, weights = draw((150, 64), jnp.bfloat16, 0), draw((3, 64, 256), jnp.bfloat16, 1)
    assert_agrees(body(sizes), x, weights, [133, 0, 12], TOLERANCE)

"""The Hopper grouped matmul goes through the compiler for sm_90a: nothing spills, and no descriptor breaks a rule."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.gpu.grouped_matmul import BARRIERS, MULTIPLYING_REGISTERS, GroupedSizes, grouped_matmul
from pallas_kernels.gpu.hopper import SHARED_MEMORY
from pallas_kernels.grouped import ExpertMatrices, QuantizedExperts
from scripts.targets.gpu import compile_for_hopper


def weights_of(shape: tuple[int, ...], dtype: str, rows_per_scale: int | None) -> Any:
    values = jax.ShapeDtypeStruct(shape, dtype)
    if values.dtype.itemsize > 1:
        return values
    *lead, d, f = shape
    scales = (*lead, f) if rows_per_scale is None else (*lead, d // rows_per_scale, f)
    return QuantizedExperts(values, jax.ShapeDtypeStruct(scales, jnp.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "rows_per_scale"),
    [
        (256, (8, 2, 4096, 1792), "bfloat16", None),  # Mixtral 8x7B over 8, decode
        (4096, (8, 2, 4096, 1792), "bfloat16", None),  # and prefill
        (4096, (32, 2880, 2880), "bfloat16", None),  # gpt-oss 20B, three warpgroups
        (4096, (8, 1792, 4096), "int8", None),
        (4096, (64, 2, 7168, 2048), "float8_e4m3fn", 128),  # DeepSeek-V3 over 4, prefill
        (64, (128, 2, 2048, 768), "float8_e4m3fn", 128),  # Qwen3 30B, decode
    ],
)
def test_nothing_spills_and_no_descriptor_breaks_a_rule(
    rows: int, shape: tuple[int, ...], dtype: str, rows_per_scale: int | None
) -> None:
    x, sizes = jax.ShapeDtypeStruct((rows, shape[-2]), jnp.bfloat16), jax.ShapeDtypeStruct((shape[0],), jnp.int32)
    weights = weights_of(shape, dtype, rows_per_scale)
    program = compile_for_hopper(grouped_matmul, x, weights, sizes)
    assert set(program.kernels) <= {"grouped_products"}  # none where the same module was compiled before
    assert [kernel.spilled for kernel in program.kernels.values()] in ([0], [])
    assert {fault for descriptor in program.descriptors for fault in descriptor.faults()} == set()
    assert program.descriptors
    assert not program.copies_of(weights.values if isinstance(weights, QuantizedExperts) else weights)


@pytest.mark.parametrize("warpgroups", MULTIPLYING_REGISTERS)
def test_warpgroups_share_the_registers_that_an_sm_has(warpgroups: int) -> None:
    assert 128 * (warpgroups * MULTIPLYING_REGISTERS[warpgroups] + 40) <= 65_536


@pytest.mark.parametrize("rows", [1, 100, 10_000])
@pytest.mark.parametrize("f", [64, 128, 192, 768, 1792, 2880, 14_336])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_derived_sizes_fit_shared_memory_and_divide_the_columns(rows: int, f: int, dtype: str) -> None:
    values, scales = jax.ShapeDtypeStruct((8, 256, f), dtype), jax.ShapeDtypeStruct((8, 1, f), jnp.float32)
    narrow = values.dtype.itemsize == 1
    matrices: Any = ExpertMatrices(values, scales if narrow else None, 1, 256 if narrow else None)  # type: ignore[arg-type]
    sizes = GroupedSizes.derived(rows, 8, matrices)
    assert f % sizes.block == 0
    assert sizes.steps >= 3
    ring = sizes.steps * 64 * (2 * sizes.rows + sizes.block * values.dtype.itemsize)
    kept = 2 * sizes.rows * sizes.block + (math.prod((2, 64, sizes.block, 2)) if narrow else 0)
    assert ring + kept <= SHARED_MEMORY - BARRIERS

"""The TPU grouped matmul goes through the TPU's own compiler: it fits VMEM, and no matrix is copied on its way."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from pallas_kernels.grouped import QuantizedExperts
from pallas_kernels.tpu.grouped_matmul import grouped_matmul
from scripts.targets.tpu import SMALLEST, compile_for, one_device


def operands(
    sharding: SingleDeviceSharding, rows: int, shape: tuple[int, ...], dtype: str, rows_per_scale: int | None
) -> tuple[Any, Any, Any]:
    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    *lead, d, f = shape
    weights = array(shape, dtype)
    if weights.dtype.itemsize == 1:
        scales = (*lead, f) if rows_per_scale is None else (*lead, d // rows_per_scale, f)
        weights = QuantizedExperts(weights, array(scales, jnp.float32))
    return array((rows, d), jnp.bfloat16), weights, array((shape[0],), jnp.int32)


@pytest.mark.parametrize("chip", SMALLEST)
@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "rows_per_scale"),
    [
        (4096, (8, 2, 4096, 1792), "bfloat16", None),  # Mixtral 8x7B over 8, prefill
        (64, (32, 2880, 2880), "bfloat16", None),  # gpt-oss 20B, decode
        (256, (8, 2, 4096, 1792), "int8", None),
        (4096, (32, 2048, 7168), "float8_e4m3fn", 128),  # DeepSeek-V3 over 8, the way down
    ],
)
def test_it_compiles_and_reads_matrices_where_they_lie(
    chip: str, rows: int, shape: tuple[int, ...], dtype: str, rows_per_scale: int | None
) -> None:
    program = compile_for(grouped_matmul, operands(one_device(SMALLEST[chip]), rows, shape, dtype, rows_per_scale))
    assert "tpu_custom_call" in program.hlo
    assert not program.copies_of(shape)
    assert not program.copies_of((shape[0] * (shape[1] if len(shape) == 4 else 1), *shape[-2:]))

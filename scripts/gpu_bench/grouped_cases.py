"""The gate and up projection of routed experts, rows spread evenly."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dispatch import grouped_matmul_body
from pallas_kernels.grouped import quantized_experts
from scripts.gpu_bench.batches import filled
from scripts.gpu_bench.clock import seconds_of
from scripts.gpu_bench.report import Recorder
from scripts.gpu_bench.scale import Scale


def run(scale: Scale, out: Recorder) -> None:
    for experts, d, f in scale.experts:
        for dtype in (scale.dtype, "float8_e4m3fn"):
            for rows in scale.expert_rows:
                _time(scale, out, experts, d, f, dtype, rows)


def _time(scale: Scale, out: Recorder, experts: int, d: int, f: int, dtype: str, rows: int) -> None:
    weights = filled(jax.ShapeDtypeStruct((experts, 2, d, f), jnp.dtype(scale.dtype)))
    if dtype != scale.dtype:
        weights = jax.jit(lambda w: quantized_experts(w, dtype))(weights)
    matmul = grouped_matmul_body(scale.body).matmul
    spread = [rows // experts + (i < rows % experts) for i in range(experts)]
    sizes = jnp.asarray(spread, jnp.int32)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((rows, d), np.float32), scale.dtype)
    program = jax.jit(lambda x, weights: matmul(x, weights, sizes))
    seconds, last = seconds_of(lambda _: program(x, weights), None, runs=scale.runs, queued=scale.queued * 2)
    touched = sum(size > 0 for size in spread)
    moved = touched * 2 * d * f * jnp.dtype(dtype).itemsize + x.nbytes + last.nbytes
    out.figure(f"{rows} rows, {experts} x [2, {d}, {f}], {dtype}", seconds, bytes=moved, flops=4.0 * rows * d * f)

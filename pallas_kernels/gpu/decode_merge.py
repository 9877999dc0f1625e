"""Joins the pieces of each unit of a decode step into its attention output.

Each piece brings its own softmax: an output that is divided by its own sum, and the base-2 logarithm of that sum. The
weight of a piece is its share of the sum of all of them (Dao et al., Flash-Decoding). A sink takes a share and gives
nothing. The pieces of a unit have consecutive numbers (decode_schedule), so one warpgroup walks over them, a few
loads in flight at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.decode_schedule import Schedule
from pallas_kernels.gpu.hopper import load
from pallas_kernels.gpu.softmax import LEAST_SUM, LOWEST

IN_FLIGHT_REGISTERS = 64  # of a thread, for pieces that are loaded before the first of them is used
COLUMNS = plgpu.Layout.WGMMA.reduce(0)


def merge(
    outputs: Array,  # [pieces, V, N] float32, each divided by its own sum
    log_sums: Array,  # [pieces, N] float32, base 2
    work: Schedule,
    sinks: Array | None,  # [units, N] float32, base 2
    *,
    units: int,  # of one sequence
    dtype: Any,
) -> Array:  # [S, units, V, N]
    """One output per unit; zero where the schedule gives a unit nothing to do."""
    shape = (work.start.shape[0], units, *outputs.shape[1:])

    def merge_pieces(*references: Any) -> None:
        _merge_unit(*references, with_sinks=sinks is not None)

    kernel = plgpu.kernel(
        merge_pieces,
        out_type=jax.ShapeDtypeStruct(shape, dtype),
        grid=shape[:2],
        grid_names=("sequence", "unit"),
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )
    operands = (outputs, log_sums, work.start, work.count, work.share)
    return kernel(*operands) if sinks is None else kernel(*operands, sinks)


def _merge_unit(outputs: Any, log_sums: Any, start: Any, count: Any, share: Any, *rest: Any, with_sinks: bool) -> None:
    sequence, unit = lax.axis_index("sequence"), lax.axis_index("unit")
    sinks, out = rest if with_sinks else (None, *rest)
    _, values, rows = outputs.shape
    in_flight = min(max(IN_FLIGHT_REGISTERS * 128 // (values * rows), 1), 8)
    blocks, cta_share = count[sequence], share[0]
    begin = start[sequence] + unit * blocks
    first_cta = lax.div(begin, cta_share)
    pieces = jnp.where(blocks > 0, lax.div(begin + blocks - 1, cta_share) - first_cta + 1, 0)
    first_piece = sequence * lax.axis_size("unit") + unit + first_cta

    def spread(row: Array) -> Array:
        return lax.broadcast_in_dim(row, (values, rows), [1])

    def add(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        maximum, total, output = carry
        here = [i * in_flight + j for j in range(in_flight)]
        index = [first_piece + jnp.minimum(j, pieces - 1) for j in here]
        logs = [load(log_sums.at[p], COLUMNS, optimized=False) for p in index]
        parts = [load(outputs.at[p], plgpu.Layout.WGMMA, optimized=False) for p in index]
        for j, log, part in zip(here, logs, parts, strict=True):
            log = log + jnp.where(j < pieces, 0.0, LOWEST)  # a piece too many: its weight is zero
            new_maximum = jnp.maximum(maximum, log)
            shrink, weight = jnp.exp2(maximum - new_maximum), jnp.exp2(log - new_maximum)
            maximum, total = new_maximum, total * shrink + weight
            output = output * spread(shrink) + part * spread(weight)
        return maximum, total, output

    if sinks is None:
        maximum, total = jnp.full((rows,), LOWEST, jnp.float32), jnp.zeros((rows,), jnp.float32)
        maximum, total = (plgpu.layout_cast(x, COLUMNS) for x in (maximum, total))
    else:
        maximum = load(sinks.at[unit], COLUMNS, optimized=False)
        total = plgpu.layout_cast(jnp.ones((rows,), jnp.float32), COLUMNS)
    output = plgpu.layout_cast(jnp.zeros((values, rows), jnp.float32), plgpu.Layout.WGMMA)
    trips = lax.div(pieces + in_flight - 1, in_flight)
    _, total, output = lax.fori_loop(0, trips, add, (maximum, total, output))
    out[sequence, unit] = (output / spread(jnp.maximum(total, LEAST_SUM))).astype(out.dtype)

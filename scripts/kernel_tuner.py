"""Finds blocks for the Hopper kernels on the GPU at hand, and writes them to its table. See scripts/tune_kernels.

Each candidate's numbers are compared with the reference body's first; one that is wrong, or does not compile, is named
and left out. The table keeps its rows of other shapes.
"""

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gpu import grouped_matmul as gpu_grouped
from pallas_kernels.gpu import paged_attention as gpu
from pallas_kernels.gpu.decode_cut import DecodeBlocks
from pallas_kernels.gpu.grouped_matmul import GroupedSizes
from pallas_kernels.gpu.hopper import STREAMING_MULTIPROCESSORS
from pallas_kernels.gpu.paged_shape import HEAD_DIMS
from pallas_kernels.gpu.prefill_schedule import BlockSizes
from pallas_kernels.ragged import AttentionOptions
from pallas_kernels.reference import grouped_matmul as reference_grouped
from pallas_kernels.reference import paged_attention as reference
from pallas_kernels.tuning import (
    GPU_DECODE,
    GPU_GROUPED,
    GPU_PREFILL,
    TABLES,
    AttentionShape,
    ExpertsShape,
    TunedKernel,
    TuningTable,
    load_table,
)
from scripts.gpu_bench.attention_cases import LAYERS_OF_A_CALL, through_layers
from scripts.gpu_bench.batches import filled, filled_pool, ragged_batch
from scripts.gpu_bench.clock import seconds_of
from scripts.gpu_bench.scale import FULL
from scripts.targets.model_shapes import EXPERT_ROWS, EXPERTS, HEADS
from sharding.chips import CHIPS, Chip

CONTEXT, SEQUENCES, CHUNK, LAYERS, PAGE_SIZE = 4096, 64, 2048, 4, 64
TOLERANCE = 0.02  # of the largest number
RUNS = 5
KERNELS = (GPU_DECODE, GPU_PREFILL, GPU_GROUPED)


@dataclass(frozen=True)
class Target:
    """One row of the table to be."""

    model: str
    kernel: TunedKernel[Any, Any]
    shape: Any
    candidates: tuple[Any, ...]
    bytes: float  # least that a call moves
    flops: float

    def floor(self, chip: Chip) -> float:
        """Seconds that no blocks can beat, by the chip's published ceilings."""
        return max(self.bytes / chip.bandwidth, self.flops / chip.bfloat16)


def targets() -> Iterator[Target]:
    """Decode and a prefill chunk of every head shape, and every expert shape, all in bfloat16."""
    for model in HEADS:
        if model.head_dim not in HEAD_DIMS:
            continue
        position = 4 * model.kv_heads * model.head_dim
        for kernel, tokens in ((GPU_DECODE, SEQUENCES), (GPU_PREFILL, CHUNK)):
            group = model.heads // model.kv_heads
            shape = AttentionShape(
                group=group,
                kv_heads=model.kv_heads,
                head_dim=model.head_dim,
                page_size=PAGE_SIZE,
                page_dtype="bfloat16",
                dtype="bfloat16",
                tokens=tokens,
            )
            decoding = kernel is GPU_DECODE
            found = decode_candidates() if decoding else prefill_candidates(group)
            read = SEQUENCES * CONTEXT if decoding else CHUNK
            pairs = SEQUENCES * CONTEXT if decoding else CHUNK * (CHUNK + 1) // 2
            flops = 4.0 * model.heads * model.head_dim * pairs
            yield Target(model.model, kernel, shape, tuple(found), float(read * position), flops)
    for model, rows in itertools.product(EXPERTS, EXPERT_ROWS):
        d, f, experts = model.d, model.f, model.experts
        shape = ExpertsShape(experts=experts, products=2, d=d, f=f, dtype="bfloat16", rows=rows)
        moved = min(rows, experts) * 4 * d * f + 2 * rows * (d + 2 * f)
        found = tuple(grouped_candidates(f))
        yield Target(model.model, GPU_GROUPED, shape, found, float(moved), 4.0 * rows * d * f)


def decode_candidates() -> Iterator[DecodeBlocks]:
    for keys, stages, of_an_sm in itertools.product((64, 128), (2, 3, 4, 6), (1, 2)):
        yield DecodeBlocks(keys, stages, of_an_sm * STREAMING_MULTIPROCESSORS)


def prefill_candidates(group: int) -> Iterator[BlockSizes]:
    for heads, keys, units in itertools.product(sorted({1, group}), (64, 128), (3, 4, 5, 6, 8)):
        yield BlockSizes(heads, keys, units)


def grouped_candidates(f: int) -> Iterator[GroupedSizes]:
    for (warpgroups, columns), rows, steps in itertools.product(
        ((2, 128), (3, 64), (2, 64), (1, 64)), (8, 16, 32, 64, 128), (3, 4, 6)
    ):
        if f % (warpgroups * columns) == 0:
            yield GroupedSizes(rows, warpgroups, columns, steps)


@dataclass(frozen=True)
class Trial:
    """A target's operands, made once: what the reference says of them, and how a candidate is called."""

    expected: np.ndarray
    numbers: Callable[[Any], jax.Array]
    seconds: Callable[[Any], float]

    def error(self, blocks: Any) -> float:
        """The largest difference to the reference, as a share of its largest number; NaN where there is one."""
        found = np.asarray(self.numbers(blocks).astype(jnp.float32))
        return float(np.abs(found - self.expected).max() / np.abs(self.expected).max())


def trial(target: Target) -> Trial:
    return _experts_trial(target) if target.kernel is GPU_GROUPED else _attention_trial(target)


def _attention_trial(target: Target) -> Trial:
    shape: AttentionShape = target.shape
    decoding = target.kernel is GPU_DECODE
    lengths, news = ([CONTEXT] * SEQUENCES, [1] * SEQUENCES) if decoding else ([CHUNK], [CHUNK])
    pages = sum(-(-length // PAGE_SIZE) for length in lengths)
    batch = ragged_batch(lengths, news, pages=pages, page_size=PAGE_SIZE, width=-(-max(lengths) // PAGE_SIZE))
    scale = dataclasses.replace(FULL, head_dim=shape.head_dim, page_size=PAGE_SIZE)
    q = filled_queries(shape.tokens, shape.group * shape.kv_heads, shape.head_dim)
    k = filled_queries(shape.tokens, shape.kv_heads, shape.head_dim)
    options = AttentionOptions(shape.head_dim**-0.5)

    def pool() -> Any:
        return filled_pool(scale, pages, LAYERS, shape.kv_heads, shape.page_dtype)

    def attend(blocks: Any) -> Any:
        both = gpu.Blocks(decode=blocks) if decoding else gpu.Blocks(prefill=blocks)
        return lambda *operands: gpu.paged_attention(*operands, blocks=both)

    def once(body: Any) -> jax.Array:
        return jax.jit(lambda pool, q, k: body(q, k, k, pool, 1, batch, options)[0], donate_argnums=0)(pool(), q, k)

    def seconds(blocks: Any) -> float:
        program = through_layers(attend(blocks), q, k, batch, LAYERS)
        return seconds_of(program, (pool(), jnp.zeros_like(q)), runs=RUNS, queued=4)[0] / LAYERS_OF_A_CALL

    expected = np.asarray(once(reference.paged_attention).astype(jnp.float32))
    return Trial(expected, lambda blocks: once(attend(blocks)), seconds)


def filled_queries(tokens: int, heads: int, head_dim: int) -> jax.Array:
    random = np.random.default_rng(heads)
    return jnp.asarray(random.standard_normal((tokens, heads, head_dim), np.float32), jnp.bfloat16)


def _experts_trial(target: Target) -> Trial:
    shape: ExpertsShape = target.shape
    weights = filled(jax.ShapeDtypeStruct((shape.experts, shape.products, shape.d, shape.f), jnp.bfloat16))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((shape.rows, shape.d), np.float32), jnp.bfloat16)
    sizes = jnp.asarray([shape.rows // shape.experts] * shape.experts, jnp.int32)

    def program(blocks: Any) -> Any:
        return jax.jit(lambda x, weights: gpu_grouped.grouped_matmul(x, weights, sizes, sizes=blocks))

    def seconds(blocks: Any) -> float:
        run = program(blocks)
        return seconds_of(lambda _: run(x, weights), None, runs=RUNS, queued=20)[0]

    expected = jax.jit(reference_grouped.grouped_matmul)(x, weights, sizes)
    return Trial(np.asarray(expected.astype(jnp.float32)), lambda blocks: program(blocks)(x, weights), seconds)


def tune(target: Target, chip: Chip, prepared: Trial) -> Any | None:
    """The fastest of the candidates that are right; None where none is. Prints a line for each."""
    best: tuple[float, Any] | None = None
    for blocks in target.candidates:
        try:
            error = prepared.error(blocks)
            if not error <= TOLERANCE:
                print(f"  {blocks}: WRONG, off by {error:.2e} of the largest number", flush=True)
                continue
            taken = prepared.seconds(blocks)
        except (ValueError, RuntimeError, NotImplementedError) as failure:  # what compilers and JAX raise
            print(f"  {blocks}: {str(failure).splitlines()[0][:160]}", flush=True)
            continue
        print(f"  {blocks}: {taken * 1e6:,.1f} µs, {target.floor(chip) / taken:.1%} of the roofline", flush=True)
        if best is None or taken < best[0]:
            best = taken, blocks
    return None if best is None else best[1]


def write_table(table: TuningTable, folder: Path) -> None:
    """A reader sees the old table or the new one, never a part."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{table.chip}.toml"
    fresh = path.with_suffix(".new")
    fresh.write_text(table.text(), encoding="utf-8")
    os.replace(fresh, path)


def chip_at_hand() -> Chip | None:
    """The Hopper GPU that JAX found; None for anything else."""
    kind = jax.devices()[0].device_kind.lower()
    return next((CHIPS[name] for name in ("h100", "h200") if name in kind), None)


def main(argv: Sequence[str] | None = None, folder: Path = TABLES) -> int:
    parser = argparse.ArgumentParser(prog="scripts/tune_kernels", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the candidates and what a call moves; needs no GPU")
    parser.add_argument("--kernel", choices=[kernel.name for kernel in KERNELS], help="by default all")
    parser.add_argument("--model", default="", metavar="WORD", help="only models whose name has it")
    args = parser.parse_args(argv)
    chosen = [t for t in targets() if args.kernel in (None, t.kernel.name) and args.model.lower() in t.model.lower()]
    if args.list:
        for target in chosen:
            print(f"{target.kernel.name}, {target.model}: {target.bytes:,.0f} bytes, {target.flops:,.0f} operations")
            print("\n".join(f"  {blocks}" for blocks in target.candidates))
        return 0
    chip = chip_at_hand()
    if chip is None:
        kind = jax.devices()[0].device_kind
        print(f"tune_kernels: it times the Hopper kernels on an H100 or H200; JAX found {kind!r}", file=sys.stderr)
        return 2
    for target in chosen:
        print(f"{target.kernel.name}, {target.model}: at least {target.floor(chip) * 1e6:,.1f} µs", flush=True)
        best = tune(target, chip, trial(target))
        print(f"  best: {best}", flush=True)
        if best is not None:
            write_table(load_table(chip.name, folder).with_row(target.kernel, target.shape, best), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

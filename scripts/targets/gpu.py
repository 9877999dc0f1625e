"""What a Mosaic GPU kernel costs on Hopper, found out without one: it is compiled to sm_90a here.

    python -m scripts.targets.gpu            the table of the decode kernel's shapes
    python -m scripts.targets.gpu --head 128

Needs jax's CUDA plugin and ptxas, no GPU. A TMA descriptor that breaks the hardware's rules compiles, and aborts the
process when the kernel is first launched; so each one is checked here.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.mosaic.gpu import core as mosaic_core
from jax.experimental.mosaic.gpu import launch_context
from jax.experimental.mosaic.gpu import utils as mosaic_utils
from jax.sharding import SingleDeviceSharding
from jaxlib.mlir import ir

from pallas_kernels.gpu import paged_decode
from pallas_kernels.gpu.hopper import STREAMING_MULTIPROCESSORS
from pallas_kernels.gpu.paged_shape import HEAD_DIMS, PagedShape
from pallas_kernels.ragged import AttentionOptions, QuantizedPages, RaggedBatch
from sharding.topology import devices_of, parse_topology


@dataclass(frozen=True)
class Resources:
    """Of one kernel, as ptxas reports them."""

    registers: int  # of a thread
    spilled: int  # bytes of a thread, stores and loads


@dataclass(frozen=True)
class Descriptor:
    """One TMA descriptor: what the copy engine is told of an array in device memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    box: tuple[int, ...]
    swizzle: int | None  # bytes
    itemsize: int

    def faults(self) -> list[str]:
        """The rules of cuTensorMapEncodeTiled that it breaks."""
        inner = self.box[-1] * self.itemsize
        rules = {
            "more than 5 dimensions": len(self.box) > 5,
            "a dimension beyond 2**32": any(size > 2**32 for size in self.shape),
            "a stride that is no multiple of 16 bytes": any(s * self.itemsize % 16 for s in self.strides[:-1]),
            "a stride of 2**40 bytes or more": any(s * self.itemsize >= 2**40 for s in self.strides[:-1]),
            "a box of more than 256 in a dimension": any(size > 256 for size in self.box),
            "an inner dimension that is no multiple of 16 bytes": bool(inner % 16),
            "an inner dimension wider than the swizzle": bool(self.swizzle and self.swizzle > 16)
            and inner > (self.swizzle or 0),
        }
        return [rule for rule, broken in rules.items() if broken]


@dataclass
class Compiled:
    """A program that was compiled for Hopper."""

    kernels: dict[str, Resources] = field(default_factory=dict)  # by name; what was compiled before is not among them
    shared_memory: int = 0  # bytes of a CTA, of the kernel that takes most
    descriptors: list[Descriptor] = field(default_factory=list)
    text: str = ""  # the optimised HLO

    def copies_of(self, array: Any) -> list[str]:
        """The instructions that copy a whole array of that shape and type."""
        name = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "int8": "s8", "float8_e4m3fn": "f8e4m3fn"}
        shape = f"{name[jnp.dtype(array.dtype).name]}[{','.join(map(str, array.shape))}]"
        return [
            line.strip()
            for line in self.text.splitlines()
            if re.search(r"= \(?" + re.escape(shape) + r"\S* (\S+ )*copy(-start)?\(", line)
        ]


def compile_for_hopper(
    function: Callable[..., Any], *operands: Any, donate: Sequence[int] = (), topology: str = "h200:1"
) -> Compiled:
    """Compiles jit(function) for operands that are shapes (jax.ShapeDtypeStruct), all of them on the first device.

    Raises RuntimeError where the CUDA plugin is missing, and what the compiler raises.
    """
    sharding = SingleDeviceSharding(devices_of(parse_topology(topology))[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), operands)
    os.environ["MOSAIC_GPU_DUMP_PTXAS"] = "1"
    compiled = Compiled()
    with _recorded_launches(compiled), _native_output() as output:
        program = jax.jit(function, donate_argnums=tuple(donate)).lower(*placed).compile()
    compiled.kernels = {
        name: Resources(int(registers), int(stores) + int(loads))
        for name, stores, loads, registers in re.findall(
            r"Compiling entry function '(\w+)_mosaic_gpu_kernel'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
            r".*?Used (\d+) registers",
            output[0],
            re.DOTALL,
        )
    }
    compiled.text = program.as_text() or ""
    return compiled


@contextlib.contextmanager
def _native_output() -> Iterator[list[str]]:
    """What the process writes to its standard outputs, the compiler's own code included. In the list's one item, after
    the block."""
    collected = [""]
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(file.fileno(), number)
            yield collected
        finally:
            for number, original in kept.items():
                os.dup2(original, number)
                os.close(original)
            file.seek(0)
            collected[0] = file.read().decode(errors="replace")


@contextlib.contextmanager
def _recorded_launches(compiled: Compiled) -> Iterator[None]:
    """Collects what the kernels that are lowered in the block ask for. jax has no public way to see it."""
    context: Any = launch_context.LaunchContext
    core: Any = mosaic_core
    original, original_launch = context._get_tma_desc, core._launch

    def descriptor(self: Any, ref: Any, transforms: Any, peer: Any, box: Any, swizzle: Any, *rest: Any) -> Any:
        compiled.descriptors.append(_descriptor(ref, transforms, box, swizzle))
        return original(self, ref, transforms, peer, box, swizzle, *rest)

    def launch(token: Any, grid: Any, cluster: Any, block: Any, shared: Any, *rest: Any, **named: Any) -> Any:
        compiled.shared_memory = max(compiled.shared_memory, core._smem_tree_size(shared))
        return original_launch(token, grid, cluster, block, shared, *rest, **named)

    context._get_tma_desc, core._launch = descriptor, launch
    try:
        yield
    finally:
        context._get_tma_desc, core._launch = original, original_launch


def _descriptor(ref: Any, transforms: Any, box: Sequence[int], swizzle: int | None) -> Descriptor:
    bits = mosaic_utils.bitwidth(ir.MemRefType(ref.type).element_type)
    for transform in transforms:
        ref = transform.apply(ref)
    seen = ir.MemRefType(ref.type)
    strides, _ = seen.get_strides_and_offset()
    return Descriptor(tuple(seen.shape), tuple(strides), tuple(box), swizzle, bits // 8)


@dataclass(frozen=True)
class DecodeShape:
    """A decode step of 64 sequences on one GPU."""

    head_dim: int
    group: int = 8
    kv_heads: int = 1
    page_size: int = 64
    page_dtype: Any = jnp.bfloat16
    soft_cap: float | None = None

    def operands(self) -> tuple[Any, ...]:
        """q, pool, layer, batch, sinks, window: shapes."""
        pages = jax.ShapeDtypeStruct((512, 4, self.page_size, 2 * self.kv_heads, self.head_dim), self.page_dtype)
        scales = jax.ShapeDtypeStruct(pages.shape[:-1], jnp.float32)
        pool = QuantizedPages(pages, scales) if pages.dtype.itemsize == 1 else pages  # type: ignore[arg-type]
        heads = self.group * self.kv_heads
        whole = [(64, 128), (64,), (65,), (), (), (64,), (64,)]  # the fields of a RaggedBatch
        batch = RaggedBatch(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in whole))  # type: ignore[arg-type]
        queries = jax.ShapeDtypeStruct((64, heads, self.head_dim), jnp.bfloat16)
        sinks, scalar = jax.ShapeDtypeStruct((heads,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
        return queries, pool, scalar, batch, sinks, scalar

    def compile(self) -> Compiled:
        options = AttentionOptions(scale=self.head_dim**-0.5, soft_cap=self.soft_cap)

        def decode(q: Array, pool: Any, layer: Array, batch: RaggedBatch, sinks: Array, window: Array) -> Array:
            return paged_decode.decode(q, pool, layer, batch, options, sinks, window)

        return compile_for_hopper(decode, *self.operands())


def main() -> None:
    parser = argparse.ArgumentParser(description="The decode kernel's registers, spills and shared memory on Hopper.")
    parser.add_argument("--head", type=int, action="append", help="a head size; repeatable; all of them by default")
    parser.add_argument("--group", type=int, action="append", help="query heads of a KV head; 8 by default")
    parser.add_argument("--pages", action="append", help="bfloat16, int8 or float8_e4m3fn; all of them by default")
    chosen = parser.parse_args()
    print("| head | pages | group | CTAs/SM | registers | merge | spilled | shared memory | TMA faults |")
    print("|---|---|---|---|---|---|---|---|---|")
    for head_dim in chosen.head or HEAD_DIMS:
        for pages in chosen.pages or ("bfloat16", "int8", "float8_e4m3fn"):
            for group in chosen.group or (8,):
                print(_row(DecodeShape(head_dim, group, page_dtype=jnp.dtype(pages))), flush=True)


def _row(shape: DecodeShape) -> str:
    title = f"| {shape.head_dim} | {jnp.dtype(shape.page_dtype).name} | {shape.group} "
    options = AttentionOptions(scale=1.0)
    queries, pool = shape.operands()[:2]
    reason = paged_decode.refusal(options, PagedShape.of(queries.shape, pool))
    if reason is not None:
        return f"{title}| refused: {reason} |"
    program = shape.compile()
    pieces, merge = program.kernels["decode_pieces"], program.kernels.get("merge_pieces")
    blocks = paged_decode.derived_blocks(queries, pool, options)
    faults = "; ".join(sorted({fault for d in program.descriptors for fault in d.faults()})) or "none"
    of_an_sm = blocks.ctas // STREAMING_MULTIPROCESSORS
    return (
        f"{title}| {of_an_sm} | {pieces.registers} | {merge.registers if merge else 'as above'} "
        f"| {sum(kernel.spilled for kernel in program.kernels.values())} | {program.shared_memory} | {faults} |"
    )


if __name__ == "__main__":
    main()

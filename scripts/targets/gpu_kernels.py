"""Every GPU kernel over the table of model shapes, by Mosaic GPU and ptxas for sm_90a."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gpu.grouped_matmul import grouped_matmul
from pallas_kernels.gpu.grouped_matmul import refusal as grouped_refusal
from pallas_kernels.gpu.hopper import SHARED_MEMORY
from pallas_kernels.gpu.paged_attention import paged_attention, pool_shape, refusal
from pallas_kernels.grouped import QuantizedExperts
from pallas_kernels.ragged import AttentionOptions, PoolSpec, RaggedBatch
from scripts.targets.gpu import Compiled, compile_for_hopper
from scripts.targets.model_shapes import (
    EXPERT_ROWS,
    EXPERTS,
    HEADS,
    LATENT,
    PAGE_SIZES,
    PAGE_TYPES,
    HeadShape,
    of_models,
)

TOKENS, SEQUENCES, CONTEXT, PAGES, LAYERS = 512, 64, 8192, 1024, 4


def table(of: str = "") -> Iterator[bool]:
    """Of the models whose names hold `of`."""
    print("| attention of | pages | registers by kernel | spilled | shared memory, KiB | TMA faults | pool copied |")
    print("|---|---|---|---|---|---|---|")
    for shape in of_models((*HEADS, LATENT), of):
        for page_size in PAGE_SIZES:
            for page_type in PAGE_TYPES if not shape.latent else ("bfloat16",):
                yield _attention(shape, page_size, page_type)
    print("| experts of | rows, weights | registers by kernel | spilled | shared memory, KiB | TMA faults | copied |")
    print("|---|---|---|---|---|---|---|")
    for model in of_models(EXPERTS, of):
        for rows in EXPERT_ROWS:
            for dtype in PAGE_TYPES:
                yield _experts(model.model, rows, model.experts, model.d, model.f, dtype)


def _attention(model: HeadShape, page_size: int, page_type: str) -> bool:
    title = f"| {model.model} | {page_size} x {page_type} |"
    spec = PoolSpec(PAGES, LAYERS, page_size, model.kv_heads, model.head_dim, jnp.dtype(page_type), latent=model.latent)
    options = AttentionOptions(model.head_dim**-0.5, value_dim=model.value_dim)
    reason = refusal(options, model.heads, spec)
    if reason is not None:
        print(f"{title} refused: {reason} | | | | |", flush=True)
        return True
    sizes = [(SEQUENCES, CONTEXT // page_size), (SEQUENCES,), (SEQUENCES + 1,), (), (), (TOKENS,), (TOKENS,)]
    batch = RaggedBatch(*(jax.ShapeDtypeStruct(size, jnp.int32) for size in sizes))  # type: ignore[arg-type]
    q, k = (
        jax.ShapeDtypeStruct((TOKENS, heads, model.head_dim), jnp.bfloat16) for heads in (model.heads, model.kv_heads)
    )
    pool = pool_shape(spec)

    def attend(pool: Any, q: Any, k: Any, v: Any, layer: Any, batch: RaggedBatch) -> Any:
        return paged_attention(q, k, v, pool, layer, batch, options)

    program = compile_for_hopper(attend, pool, q, k, k, jax.ShapeDtypeStruct((), jnp.int32), batch, donate=(0,))
    copies = [line for leaf in jax.tree.leaves(pool) for line in program.copies_of(leaf)]
    return _row(title, program, copies)


def _experts(name: str, rows: int, experts: int, d: int, f: int, dtype: str) -> bool:
    title = f"| {name} | {rows}, {dtype} |"
    weights: Any = jax.ShapeDtypeStruct((experts, 2, d, f), jnp.dtype(dtype))
    values = weights
    if weights.dtype.itemsize == 1:
        weights = QuantizedExperts(weights, jax.ShapeDtypeStruct((experts, 2, f), jnp.float32))  # type: ignore[arg-type]
    reason = grouped_refusal(weights, jnp.bfloat16)
    if reason is not None:
        print(f"{title} refused: {reason} | | | | |", flush=True)
        return True
    x, sizes = jax.ShapeDtypeStruct((rows, d), jnp.bfloat16), jax.ShapeDtypeStruct((experts,), jnp.int32)
    program = compile_for_hopper(grouped_matmul, x, weights, sizes)
    return _row(title, program, program.copies_of(values))


def _row(title: str, program: Compiled, copies: list[str]) -> bool:
    """A kernel that was compiled for an earlier row is not compiled again, and not listed."""
    registers = ", ".join(f"{name} {kernel.registers}" for name, kernel in program.kernels.items()) or "as above"
    spilled = sum(kernel.spilled for kernel in program.kernels.values())
    faults = sorted({fault for descriptor in program.descriptors for fault in descriptor.faults()})
    shared = program.shared_memory >> 10
    print(f"{title} {registers} | {spilled} | {shared} | {'; '.join(faults) or 'none'} | {len(copies)} |", flush=True)
    return not (spilled or faults or copies) and program.shared_memory <= SHARED_MEMORY

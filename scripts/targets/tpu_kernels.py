"""Every TPU kernel over the table of model shapes, by libtpu's own compiler."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError

from pallas_kernels.grouped import QuantizedExperts
from pallas_kernels.ragged import AttentionOptions, PoolSpec, RaggedBatch
from pallas_kernels.tpu.blocks import VMEM_LIMIT
from pallas_kernels.tpu.grouped_matmul import grouped_matmul
from pallas_kernels.tpu.paged_attention import paged_attention, pool_shape, refusal
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
from scripts.targets.tpu import SMALLEST, compile_for, one_device

TOKENS, SEQUENCES, CONTEXT, PAGES, LAYERS = 512, 64, 8192, 1024, 4


def table(chips: Sequence[str] = tuple(SMALLEST), of: str = "") -> Iterator[bool]:
    """Of the models whose names hold `of`."""
    print("| chip | attention of | pages | VMEM, KiB: decode, prefill, writes | pool copied |")
    print("|---|---|---|---|---|")
    for chip in chips:
        for shape in of_models(HEADS, of):
            for page_size in PAGE_SIZES:
                for page_type in PAGE_TYPES:
                    yield _attention(chip, shape, page_size, page_type)
        for shape in of_models([LATENT], of):
            yield _attention(chip, shape, 64, "bfloat16")
    print("| chip | experts of | rows | weights | VMEM, KiB |")
    print("|---|---|---|---|---|")
    for chip in chips:
        for model in of_models(EXPERTS, of):
            for rows in EXPERT_ROWS:
                for dtype in PAGE_TYPES:
                    yield _experts(chip, model.model, rows, model.experts, model.d, model.f, dtype)


def _attention(chip: str, model: HeadShape, page_size: int, page_type: str) -> bool:
    title = f"| {chip} | {model.model} | {page_size} x {page_type} |"
    spec = PoolSpec(PAGES, LAYERS, page_size, model.kv_heads, model.head_dim, page_type, latent=model.latent)
    options = AttentionOptions(model.head_dim**-0.5, value_dim=model.value_dim)
    reason = refusal(options, model.heads, spec)
    if reason is not None:
        print(f"{title} refused: {reason} | |", flush=True)
        return True
    sharding = one_device(SMALLEST[chip])
    shape = partial(jax.ShapeDtypeStruct, sharding=sharding)
    sizes = [(SEQUENCES, CONTEXT // page_size), (SEQUENCES,), (SEQUENCES + 1,), (), (), (TOKENS,), (TOKENS,)]
    batch = RaggedBatch(*(shape(size, jnp.int32) for size in sizes))
    pool = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype), pool_shape(spec))
    q, k = (shape((TOKENS, heads, model.head_dim), jnp.bfloat16) for heads in (model.heads, model.kv_heads))

    def attend(pool: Any, q: Any, k: Any, v: Any, layer: Any, batch: RaggedBatch) -> Any:
        return paged_attention(q, k, v, pool, layer, batch, options)

    arguments = (pool, q, k, None if model.latent else k, shape((), jnp.int32), batch)
    try:
        program = compile_for(attend, arguments, donate=[0])
    except JaxRuntimeError as error:  # one more finding, not the end of the table
        print(f"{title} **does not compile**: {str(error).splitlines()[0]} | |", flush=True)
        return False
    vmem = program.vmem()
    copies = [line for leaf in jax.tree.leaves(pool) for line in program.copies_of(leaf.shape)]
    names = ("paged_decode", "paged_prefill", "write_prefill_pages")
    print(f"{title} {', '.join(str(vmem.get(name, 0) >> 10) for name in names)} | {len(copies)} |", flush=True)
    return not copies and max(vmem.values()) <= VMEM_LIMIT


def _experts(chip: str, name: str, rows: int, experts: int, d: int, f: int, dtype: str) -> bool:
    shape = partial(jax.ShapeDtypeStruct, sharding=one_device(SMALLEST[chip]))
    weights: Any = shape((experts, 2, d, f), jnp.dtype(dtype))
    if weights.dtype.itemsize == 1:
        weights = QuantizedExperts(weights, shape((experts, 2, f), jnp.float32))
    arguments = (shape((rows, d), jnp.bfloat16), weights, shape((experts,), jnp.int32))
    program = compile_for(grouped_matmul, arguments)
    copies = program.copies_of((experts, 2, d, f)) + program.copies_of((experts * 2, d, f))
    print(f"| {chip} | {name} | {rows} | {dtype} | {sum(program.vmem().values()) >> 10} |", flush=True)
    return not copies

"""Kernels with the blocks that were measured for their shapes; a shape that nobody measured derives its own.

The look-up is made while a program is traced, with the shapes of one device: nothing is chosen while serving.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.gpu import grouped_matmul as gpu_grouped_matmul
from pallas_kernels.gpu import paged_attention as gpu
from pallas_kernels.grouped import ExpertWeights, expert_shape
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages, RaggedBatch
from pallas_kernels.tpu import grouped_matmul as tpu_grouped_matmul
from pallas_kernels.tpu import paged_attention as tpu
from pallas_kernels.tpu.blocks import Blocks as TpuBlocks
from pallas_kernels.tuning import (
    GPU_DECODE,
    GPU_GROUPED,
    GPU_PREFILL,
    TPU_ATTENTION,
    TPU_GROUPED,
    AttentionShape,
    ExpertsShape,
    TuningTable,
    bucket,
)


def attention_shape(q: Array, k: Array, pool: Pool, options: AttentionOptions) -> AttentionShape:
    """Of a call with q [T, H, C] and k [T, K, C]."""
    values = pool.values if isinstance(pool, QuantizedPages) else pool
    return AttentionShape(
        group=q.shape[1] // k.shape[1],
        kv_heads=k.shape[1],
        head_dim=q.shape[2],
        page_size=values.shape[2],
        page_dtype=jnp.dtype(values.dtype).name,
        dtype=jnp.dtype(q.dtype).name,
        tokens=bucket(q.shape[0]),
        value_dim=options.value_dim or 0,
    )


def experts_shape(x: Array, weights: ExpertWeights, group_sizes: Array) -> ExpertsShape:
    """Of a call with rows x [M, D]."""
    shape = expert_shape(weights)
    return ExpertsShape(
        experts=group_sizes.shape[0],
        products=shape.products,
        d=shape.d,
        f=shape.f,
        dtype=shape.dtype.name,
        rows_per_scale=shape.rows_per_scale or 0,
        row_dtype=jnp.dtype(x.dtype).name,
        rows=bucket(x.shape[0]),
    )


@dataclasses.dataclass(frozen=True)
class TunedGpuAttention:
    """A `dispatch.PagedAttention`."""

    table: TuningTable

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array | None,
        pool: Pool,
        layer: Array | int,
        batch: RaggedBatch,
        options: AttentionOptions,
        sinks: Array | None = None,
        window: Array | int | None = None,
    ) -> tuple[Array, Pool]:
        shape = attention_shape(q, k, pool, options)
        blocks = gpu.Blocks(self.table.find(GPU_DECODE, shape), self.table.find(GPU_PREFILL, shape))
        return gpu.paged_attention(q, k, v, pool, layer, batch, options, sinks, window, blocks=blocks)


@dataclasses.dataclass(frozen=True)
class TunedTpuAttention:
    """A `dispatch.PagedAttention`."""

    table: TuningTable
    interpret: Any = False  # as the kernels take it

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array | None,
        pool: Pool,
        layer: Array | int,
        batch: RaggedBatch,
        options: AttentionOptions,
        sinks: Array | None = None,
        window: Array | int | None = None,
    ) -> tuple[Array, Pool]:
        blocks = self.table.find(TPU_ATTENTION, attention_shape(q, k, pool, options))
        if blocks is not None:
            blocks = _within(blocks, batch.page_table.shape[1])
        run = tpu.paged_attention
        return run(q, k, v, pool, layer, batch, options, sinks, window, blocks=blocks, interpret=self.interpret)


def _within(blocks: TpuBlocks, table_width: int) -> TpuBlocks:
    """A block is no longer than the longest sequence: tables of other widths were measured."""
    return dataclasses.replace(
        blocks,
        decode_pages=min(blocks.decode_pages, table_width),
        prefill_pages=min(blocks.prefill_pages, table_width),
    )


@dataclasses.dataclass(frozen=True)
class TunedGpuGroupedMatmul:
    """A `grouped.GroupedMatmul`."""

    table: TuningTable

    def __call__(
        self,
        x: Array,
        weights: ExpertWeights,
        group_sizes: Array,
        *,
        first_expert: Array | int = 0,
        preferred_element_type: DTypeLike | None = None,
    ) -> Array:
        return gpu_grouped_matmul.grouped_matmul(
            x,
            weights,
            group_sizes,
            first_expert=first_expert,
            preferred_element_type=preferred_element_type,
            sizes=self.table.find(GPU_GROUPED, experts_shape(x, weights, group_sizes)),
        )


@dataclasses.dataclass(frozen=True)
class TunedTpuGroupedMatmul:
    """A `grouped.GroupedMatmul`."""

    table: TuningTable
    interpret: Any = False

    def __call__(
        self,
        x: Array,
        weights: ExpertWeights,
        group_sizes: Array,
        *,
        first_expert: Array | int = 0,
        preferred_element_type: DTypeLike | None = None,
    ) -> Array:
        return tpu_grouped_matmul.grouped_matmul(
            x,
            weights,
            group_sizes,
            first_expert=first_expert,
            preferred_element_type=preferred_element_type,
            tiles=self.table.find(TPU_GROUPED, experts_shape(x, weights, group_sizes)),
            interpret=self.interpret,
        )

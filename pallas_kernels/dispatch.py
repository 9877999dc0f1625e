"""Which body of a kernel runs. Decided once, at load, by name: never in the middle of serving, never silently."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.cpu import matmul as cpu_matmul
from pallas_kernels.cpu import paged_attention as cpu
from pallas_kernels.cpu import transposed_matmul as cpu_transposed_matmul
from pallas_kernels.gpu import grouped_matmul as gpu_grouped_matmul
from pallas_kernels.gpu import paged_attention as gpu
from pallas_kernels.grouped import ExpertWeights, GroupedMatmul
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, RaggedBatch
from pallas_kernels.reference import grouped_matmul as reference_grouped_matmul
from pallas_kernels.reference import paged_attention as reference
from pallas_kernels.tpu import grouped_matmul as tpu_grouped_matmul
from pallas_kernels.tpu import paged_attention as tpu
from pallas_kernels.tuned_bodies import (
    TunedGpuAttention,
    TunedGpuGroupedMatmul,
    TunedTpuAttention,
    TunedTpuGroupedMatmul,
)
from pallas_kernels.tuning import GPU_DECODE, GPU_GROUPED, GPU_PREFILL, TPU_ATTENTION, TPU_GROUPED, TuningTable

Body = Literal["reference", "cpu", "tpu", "gpu"]


class PagedAttention(Protocol):
    """Writes the new k and v into the pool in place and attends: (out [T, H, C or value_dim], pool)."""

    def __call__(
        self,
        q: Array,  # [T, H, C]
        k: Array,  # [T, K, C]
        v: Array | None,  # [T, K, C]; None where latent
        pool: Pool,
        layer: Array | int,
        batch: RaggedBatch,
        options: AttentionOptions,
        sinks: Array | None = None,  # [H] extra logits that take weight and give no value
        window: Array | int | None = None,  # [] int32, may be traced; None: no window is compiled in at all
    ) -> tuple[Array, Pool]: ...


@dataclass(frozen=True)
class AttentionBody:
    """One body: what runs, how its pool lies, and what it cannot do."""

    attend: PagedAttention
    pool: Callable[[PoolSpec], Pool]  # its leaves are jax.ShapeDtypeStruct
    refusal: Callable[[AttentionOptions, int, PoolSpec], str | None]
    """(options, query heads, pool): why this body cannot serve such a model, as a sentence; None where it can."""


BODIES: dict[Body, AttentionBody] = {
    "reference": AttentionBody(reference.paged_attention, reference.pool_shape, reference.refusal),
    "cpu": AttentionBody(cpu.paged_attention, cpu.pool_shape, cpu.refusal),
    "tpu": AttentionBody(tpu.paged_attention, tpu.pool_shape, tpu.refusal),
    "gpu": AttentionBody(gpu.paged_attention, gpu.pool_shape, gpu.refusal),
}


def attention_body(name: Body) -> AttentionBody:
    """The attention body of that name. Raises ValueError for a name that has none."""
    if name not in BODIES:
        raise ValueError(f"there is no attention body {name!r}; there is {', '.join(map(repr, BODIES))}")
    return BODIES[name]


def paged_attention(name: Body) -> PagedAttention:
    """What runs of the body of that name. Raises ValueError for a name that has none."""
    return attention_body(name).attend


def tuned_attention_body(name: Body, table: TuningTable) -> AttentionBody:
    """The attention body of that name with a chip's measured blocks (`tuning.load_table`) bound; itself if it has none.

    Raises ValueError for a name that has none.
    """
    body = attention_body(name)
    if name == "gpu" and table.has(GPU_DECODE, GPU_PREFILL):
        return dataclasses.replace(body, attend=TunedGpuAttention(table))
    if name == "tpu" and table.has(TPU_ATTENTION):
        return dataclasses.replace(body, attend=TunedTpuAttention(table))
    return body


@dataclass(frozen=True)
class GroupedMatmulBody:
    """One body of the grouped matmul: what runs, and what it cannot do."""

    matmul: GroupedMatmul
    refusal: Callable[[ExpertWeights, DTypeLike], str | None]
    """(weights or their shapes, dtype of the rows): why this body cannot multiply them; None where it can."""
    reads_mxfp4: bool = False  # weights that stay in 4 bits on the device, by groups with a scale each


_REFERENCE_GROUPED = GroupedMatmulBody(
    reference_grouped_matmul.grouped_matmul, reference_grouped_matmul.refusal, reads_mxfp4=True
)
GROUPED_MATMULS: dict[Body, GroupedMatmulBody] = {
    "reference": _REFERENCE_GROUPED,
    "cpu": _REFERENCE_GROUPED,
    "tpu": GroupedMatmulBody(tpu_grouped_matmul.grouped_matmul, tpu_grouped_matmul.refusal),
    "gpu": GroupedMatmulBody(gpu_grouped_matmul.grouped_matmul, gpu_grouped_matmul.refusal),
}


def grouped_matmul_body(name: Body) -> GroupedMatmulBody:
    """The grouped matmul of that name. Raises ValueError for a name that has none."""
    if name not in GROUPED_MATMULS:
        raise ValueError(f"there is no grouped matmul {name!r}; there is {', '.join(map(repr, GROUPED_MATMULS))}")
    return GROUPED_MATMULS[name]


def tuned_grouped_matmul_body(name: Body, table: TuningTable) -> GroupedMatmulBody:
    """As `tuned_attention_body`, of a grouped matmul."""
    body = grouped_matmul_body(name)
    if name == "gpu" and table.has(GPU_GROUPED):
        return dataclasses.replace(body, matmul=TunedGpuGroupedMatmul(table))
    if name == "tpu" and table.has(TPU_GROUPED):
        return dataclasses.replace(body, matmul=TunedTpuGroupedMatmul(table))
    return body


class DenseMatmul(NamedTuple):
    """How a device by itself multiplies x [T, I] with a weight: to [T, O] float32."""

    plain: Callable[[Array, Array], Array]  # of a weight [I, O]
    transposed: Callable[[Array, Array], Array]  # of one [O, I]


def dense_matmul(name: Body) -> DenseMatmul | None:
    """That of the body of that name; None where XLA does it as well."""
    return DenseMatmul(cpu_matmul.matmul, cpu_transposed_matmul.transposed_matmul) if name == "cpu" else None

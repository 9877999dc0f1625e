"""Which body of a kernel runs. Decided once, at load, by name: never in the middle of serving, never silently."""

from typing import Literal, Protocol

from jax import Array

from pallas_kernels.ragged import AttentionOptions, RaggedBatch
from pallas_kernels.reference import paged_attention as reference

Body = Literal["reference"]


class PagedAttention(Protocol):
    """Writes the new k and v into the pool in place and attends: (out [T, H, C], pool)."""

    def __call__(
        self,
        q: Array,  # [T, H, C]
        k: Array,  # [T, K, C]
        v: Array,  # [T, K, C]
        pool: Array,  # [pages, L, page_size, 2K, C]
        layer: Array | int,
        batch: RaggedBatch,
        options: AttentionOptions,
        sinks: Array | None = None,  # [H]
    ) -> tuple[Array, Array]: ...


def paged_attention(body: Body) -> PagedAttention:
    """The attention body of that name. Raises ValueError for a name that has none."""
    if body == "reference":
        return reference.paged_attention
    raise ValueError(f"there is no attention body {body!r}; there is 'reference'")

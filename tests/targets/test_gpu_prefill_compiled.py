"""The Hopper prefill kernel goes through the compiler for sm_90a: what spills, and what its TMA descriptors ask for."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from pallas_kernels.gpu.hopper import SHARED_MEMORY
from pallas_kernels.gpu.paged_prefill import prefill
from pallas_kernels.ragged import AttentionOptions, QuantizedPages, RaggedBatch
from scripts.targets.gpu import Compiled, compile_for_hopper

TOKENS, SEQUENCES = 2048, 16


@dataclass(frozen=True)
class PrefillShape:
    """A step of one prefill bucket with every option, on one GPU."""

    head_dim: int
    kv_heads: int = 8
    group: int = 8
    page_size: int = 64
    pages: str = "bfloat16"
    tokens: int = TOKENS

    def compile(self) -> Compiled:
        values: Any = jax.ShapeDtypeStruct((256, 4, self.page_size, 2 * self.kv_heads, self.head_dim), self.pages)
        scales: Any = jax.ShapeDtypeStruct(values.shape[:-1], jnp.float32)
        pool = QuantizedPages(values, scales) if values.dtype.itemsize == 1 else values
        fields = [(SEQUENCES, 64), (SEQUENCES,), (SEQUENCES + 1,), (), (), (self.tokens,), (self.tokens,)]
        batch = RaggedBatch(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in fields))  # type: ignore[arg-type]
        heads, scalar = self.kv_heads * self.group, jax.ShapeDtypeStruct((), jnp.int32)
        q = jax.ShapeDtypeStruct((self.tokens, heads, self.head_dim), jnp.bfloat16)
        options = AttentionOptions(scale=self.head_dim**-0.5, soft_cap=50.0)

        def call(q: Array, pool: Any, layer: Array, batch: RaggedBatch, sinks: Array, window: Array) -> Array:
            return prefill(q, pool, layer, batch, options, sinks, window)

        return compile_for_hopper(call, q, pool, scalar, batch, jax.ShapeDtypeStruct((heads,), jnp.float32), scalar)


SHAPES = [
    PrefillShape(64, page_size=16),
    PrefillShape(80, group=5),
    PrefillShape(96, page_size=32),
    PrefillShape(128),
    PrefillShape(128, kv_heads=1, group=16, page_size=256),
    PrefillShape(192, pages="float8_e4m3fn"),
    PrefillShape(256),
    PrefillShape(128, page_size=16, tokens=320),
    PrefillShape(128, pages="float8_e4m3fn"),
    PrefillShape(64, kv_heads=3, group=7, pages="int8", tokens=320),
    PrefillShape(256, kv_heads=1, pages="int8"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_spills_and_no_descriptor_breaks_a_rule(shape: PrefillShape) -> None:
    program = shape.compile()
    assert [kernel.spilled for kernel in program.kernels.values()] in ([0], [])  # none where compiled before
    assert {fault for descriptor in program.descriptors for fault in descriptor.faults()} == set()
    assert program.descriptors
    assert program.shared_memory <= SHARED_MEMORY

"""The GPU attention body, compiled to sm_90a without a GPU: no spills, no copy of the pool, no TMA rule broken."""

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from pallas_kernels.gpu import paged_attention as gpu
from pallas_kernels.gpu import paged_decode
from pallas_kernels.gpu.hopper import SHARED_MEMORY, STREAMING_MULTIPROCESSORS
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, QuantizedPages, RaggedBatch
from scripts.targets.gpu import Compiled, DecodeShape, Descriptor, compile_for_hopper

SHAPES = [
    DecodeShape(head_dim=64, group=1, page_size=16),
    DecodeShape(head_dim=80, group=4, page_size=32, kv_heads=8),
    DecodeShape(head_dim=128, soft_cap=30.0),
    DecodeShape(head_dim=256, group=16, page_size=256),
    DecodeShape(head_dim=96, page_dtype=jnp.dtype("int8")),
    DecodeShape(head_dim=128, page_dtype=jnp.dtype("float8_e4m3fn"), kv_heads=8, group=4),
]


def faults(program: Compiled) -> set[str]:
    return {fault for descriptor in program.descriptors for fault in descriptor.faults()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_compiles_without_spills_and_by_the_rules_of_tma(shape: DecodeShape) -> None:
    program = shape.compile()
    assert program.descriptors
    assert not faults(program)
    assert program.shared_memory <= SHARED_MEMORY
    assert all(kernel.spilled == 0 for kernel in program.kernels.values())
    queries, pool, *_ = shape.operands()
    blocks = paged_decode.derived_blocks(queries, pool, AttentionOptions(scale=1.0))
    threads = 256 * blocks.ctas // STREAMING_MULTIPROCESSORS
    assert program.kernels["decode_pieces"].registers * threads <= 65_536


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_scan_over_layers_leaves_the_pool_where_it_is(dtype: str) -> None:
    tokens, rows, heads, kv_heads, head_dim, layers = 64, 16, 8, 2, 128, 4
    pool = gpu.pool_shape(PoolSpec(256, layers, 64, kv_heads, head_dim, jnp.dtype(dtype)))
    options = AttentionOptions(scale=head_dim**-0.5)

    def step(x: Array, pool: Pool, batch: RaggedBatch, windows: Array) -> tuple[Array, Pool]:
        def layer(carry: tuple[Array, Pool], each: tuple[Array, Array]) -> tuple[tuple[Array, Pool], None]:
            x, pool = carry
            index, window = each
            k, v = x[:, :kv_heads], x[:, kv_heads : 2 * kv_heads]
            out, pool = gpu.paged_attention(x, k, v, pool, index, batch, options, window=window)
            return (x + out, pool), None

        return lax.scan(layer, (x, pool), (jnp.arange(layers, dtype=jnp.int32), windows))[0]

    shapes = [(rows, 32), (rows,), (rows + 1,), (), (), (tokens,), (tokens,)]
    batch = RaggedBatch(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes))  # type: ignore[arg-type]
    x = jax.ShapeDtypeStruct((tokens, heads, head_dim), jnp.bfloat16)
    windows = jax.ShapeDtypeStruct((layers,), jnp.int32)
    program = compile_for_hopper(step, x, pool, batch, windows, donate=(1,))
    assert not faults(program)
    pages = pool.values if isinstance(pool, QuantizedPages) else pool
    assert "while(" in program.text
    assert not program.copies_of(pages)


def test_a_descriptor_that_the_hardware_would_refuse_is_found() -> None:
    good = Descriptor((1024, 64), (64, 1), (64, 64), swizzle=128, itemsize=2)
    assert not good.faults()
    assert Descriptor((1024, 60), (60, 1), (64, 60), 128, 2).faults()  # rows of 120 bytes
    assert Descriptor((1024, 64), (64, 1), (512, 64), 128, 2).faults()
    assert Descriptor((1024, 128), (128, 1), (64, 128), 128, 2).faults()
    assert Descriptor((2, 2, 2, 2, 8, 8), (2048, 1024, 512, 64, 8, 1), (1, 1, 1, 1, 8, 8), None, 2).faults()


def test_a_copy_of_the_pool_is_found() -> None:
    pool = jax.ShapeDtypeStruct((64, 2, 16, 2, 64), jnp.bfloat16)
    program = compile_for_hopper(lambda pool: pool.at[0].set(0), pool)  # not donated: it has to be copied
    assert program.copies_of(pool)

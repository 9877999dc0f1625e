"""The TPU attention kernels go through the TPU's own compiler: they fit VMEM, and nothing copies the pool."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.ragged import AttentionOptions, PoolSpec, RaggedBatch
from pallas_kernels.tpu.blocks import VMEM_LIMIT
from pallas_kernels.tpu.paged_attention import paged_attention, pool_shape
from scripts.targets.tpu import SMALLEST, TpuProgram, compile_for, one_device, topology_mesh

TOKENS, SEQUENCES, TABLE, PAGES, LAYERS = 256, 64, 64, 16384, 4
KERNELS = {"write_prefill_pages", "paged_decode", "paged_prefill"}
WHOLE = PartitionSpec()


def ragged_batch(sharding: Any) -> RaggedBatch:
    def integers(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

    return RaggedBatch(
        page_table=integers(SEQUENCES, TABLE),
        kv_lens=integers(SEQUENCES),
        cu_q_lens=integers(SEQUENCES + 1),
        num_decode=integers(),
        num_seqs=integers(),
        positions=integers(TOKENS),
        sequence_ids=integers(TOKENS),
    )


def assert_in_place(program: TpuProgram, pool: Any) -> None:
    """The result is the argument's memory, and besides it there is no room for another."""
    leaves = jax.tree.leaves(pool)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert program.alias_size >= size
    assert program.temporary_size < size / 8
    assert not [line for leaf in leaves for line in program.copies_of(leaf.shape)]


def assert_fits(program: TpuProgram) -> None:
    used = program.vmem()
    assert set(used) == KERNELS
    assert max(used.values()) <= VMEM_LIMIT


@pytest.mark.parametrize(
    ("chip", "query_heads", "spec", "options", "window"),
    [
        ("v5e", 8, PoolSpec(PAGES, LAYERS, 16, 1, 80, "bfloat16"), AttentionOptions(0.1, soft_cap=30.0), False),
        ("v6e", 8, PoolSpec(PAGES, LAYERS, 64, 1, 128, "int8"), AttentionOptions(0.1), True),
        (
            "v5p",
            16,
            PoolSpec(PAGES, LAYERS, 64, 1, 576, "bfloat16", latent=True),
            AttentionOptions(0.1, value_dim=512),
            False,
        ),
        ("v5p", 4, PoolSpec(PAGES, LAYERS, 256, 1, 64, "float8_e4m3fn"), AttentionOptions(0.1, chunked=True), True),
    ],
    ids=["heads of 80 in pages of 16", "int8 and a window", "latent", "float8 and chunks"],
)
def test_one_device(chip: str, query_heads: int, spec: PoolSpec, options: AttentionOptions, window: bool) -> None:
    sharding = one_device(SMALLEST[chip])
    shape = partial(jax.ShapeDtypeStruct, sharding=sharding)
    pool = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype), pool_shape(spec))
    q, k = (shape((TOKENS, heads, spec.head_dim), jnp.bfloat16) for heads in (query_heads, spec.kv_heads))
    number, sinks = shape((), jnp.int32), shape((query_heads,), jnp.float32)

    def attend(pool: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, sinks: Any, width: Any) -> Any:
        return paged_attention(q, k, v, pool, layer, batch, options, sinks, width if window else None)

    arguments = (pool, q, k, None if spec.latent else k, number, ragged_batch(sharding), sinks, number)
    program = compile_for(attend, arguments, donate=[0])
    assert_in_place(program, pool)
    assert_fits(program)


def test_layers_are_scanned_over_devices_that_split_the_heads() -> None:
    devices, heads, head_dim, width = 4, 4, 128, 256
    mesh = topology_mesh("v5e:2x2", [devices], ["tensor"])
    split = PartitionSpec(None, None, None, "tensor")
    local = pool_shape(PoolSpec(PAGES, LAYERS, 64, 1, head_dim, "bfloat16"))

    def layers(hidden: Any, weights: Any, pool: Any, batch: RaggedBatch) -> Any:
        def layer(carry: Any, item: Any) -> Any:
            (hidden, pool), (index, weight) = carry, item
            rows = (hidden @ weight).reshape(TOKENS, heads + 2, head_dim)
            q, k, v = rows[:, :heads], rows[:, heads : heads + 1], rows[:, heads + 1 :]
            out, pool = paged_attention(q, k, v, pool, index, batch, AttentionOptions(0.1))
            return (hidden + lax.psum(out.reshape(TOKENS, -1)[:, :width], "tensor"), pool), None

        return lax.scan(layer, (hidden, pool), (jnp.arange(LAYERS, dtype=jnp.int32), weights))[0]

    def shape(dims: tuple[int, ...], spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    columns = PartitionSpec(None, None, "tensor")
    (own,) = jax.tree.leaves(local)
    arguments = (
        shape((TOKENS, width), WHOLE),
        shape((LAYERS, width, devices * (heads + 2) * head_dim), columns),
        shape((*own.shape[:3], devices * own.shape[3]), split),
        ragged_batch(NamedSharding(mesh, WHOLE)),
    )
    stepped = jax.shard_map(
        layers, mesh=mesh, in_specs=(WHOLE, columns, split, WHOLE), out_specs=(WHOLE, split), check_vma=False
    )
    program = compile_for(stepped, arguments, donate=[2])
    assert_in_place(program, local)
    assert_fits(program)


def test_a_copy_of_the_pool_is_seen() -> None:
    """An update of a pool that was not donated has to copy it."""
    pool = jax.ShapeDtypeStruct((PAGES, LAYERS, 64, 256), jnp.bfloat16, sharding=one_device(SMALLEST["v5e"]))
    program = compile_for(lambda pool: pool.at[3, 1, 2].set(1.0), [pool])
    with pytest.raises(AssertionError):
        assert_in_place(program, pool)
    assert program.copies_of(pool.shape)


def test_vmem_is_read_from_the_kernels_own_line() -> None:
    configs = {"used_scoped_memory_configs": [{"memory_space": "1", "offset": "0", "size": "4096"}]}
    call = 'custom-call(), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/paged_decode/pallas_call"}'
    line = f"%x = {call}, backend_config={json.dumps(configs, separators=(',', ':'))}"
    assert TpuProgram(line, 0, 0, 0, 0).vmem() == {"paged_decode": 4096}

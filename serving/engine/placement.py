"""Where the engine's arrays lie on a mesh: pages split by KV head and data shard, attention likewise, what is small on
every device.

Every attention body runs under jax.shard_map: it sees the heads of one device and a pool of their pages, and no
collective is made inside.
"""

import dataclasses
import math
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.interface import ModelShape
from pallas_kernels.dispatch import AttentionBody, PagedAttention
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, RaggedBatch
from serving.engine.limits import ExecutorLimits
from sharding.params import placement_of
from sharding.rules import spec_of, split_of

_HEADS = spec_of(("tokens", "heads", None))  # of q and of what comes out
_KV_HEADS = spec_of(("tokens", "kv_heads", None))  # of k and v
_LATENT = spec_of(("tokens", None, None))
_BATCH = spec_of(("tokens",))
_SINKS = spec_of(("heads",))
_WHOLE = PartitionSpec()
_MANY = 128  # times the KV heads or the pages of a pool: enough that padding cannot hide which dimension they are


def pool_spec(shape: ModelShape, limits: ExecutorLimits, cache_dtype: Any, mesh: Mesh) -> PoolSpec:
    """The pages of the whole mesh: those of every data shard, with as many copies of each KV head as it needs."""
    latent = shape.value_dim is not None
    copies = 1 if latent else placement_of(mesh, shape.num_heads, shape.num_kv_heads).kv_copies
    return PoolSpec(
        pages=limits.num_pages * mesh.shape["data"],
        layers=shape.num_layers,
        page_size=limits.page_size,
        kv_heads=shape.num_kv_heads * copies,
        head_dim=shape.head_dim,
        dtype=cache_dtype,
        latent=latent,
    )


def spec_of_a_device(spec: PoolSpec, mesh: Mesh) -> PoolSpec:
    """The part of a pool that one device holds. A latent pool is whole everywhere: every query head reads all of it."""
    parts = 1 if spec.latent else split_of(mesh, "kv_heads")
    return dataclasses.replace(spec, kv_heads=spec.kv_heads // parts, pages=spec.pages // split_of(mesh, "pages"))


def pool_on_mesh(body: AttentionBody, spec: PoolSpec, mesh: Mesh) -> Pool:
    """The pool of `spec`, whose KV heads divide by the devices that split them, as jax.ShapeDtypeStructs on the mesh.

    Each device's part has the shape that the body asks for with that device's KV heads.
    """
    local = spec_of_a_device(spec, mesh)
    more_heads = dataclasses.replace(local, kv_heads=local.kv_heads * _MANY)
    more_pages = dataclasses.replace(local, pages=local.pages * _MANY)

    def leaf(one: Any, with_heads: Any, with_pages: Any) -> jax.ShapeDtypeStruct:
        names: list[str | None] = [None] * one.ndim
        names[_first_difference(one, with_pages)] = "pages"
        if not spec.latent:
            names[_first_difference(one, with_heads)] = "kv_heads"
        whole = tuple(size * split_of(mesh, name) for size, name in zip(one.shape, names, strict=True))
        return jax.ShapeDtypeStruct(whole, one.dtype, sharding=NamedSharding(mesh, spec_of(tuple(names))))

    shapes = (body.pool(local), body.pool(local if spec.latent else more_heads), body.pool(more_pages))
    return jax.tree.map(leaf, *shapes)


def _first_difference(one: Any, other: Any) -> int:
    """The first dimension in which two shapes differ."""
    return next(i for i, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b)


def bytes_on_a_device(pool: Any) -> int:
    """Bytes of each device's part of arrays, or of their forms."""
    leaves = jax.tree.leaves(pool)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def attention_on_mesh(attention: PagedAttention, mesh: Mesh, pool: Pool) -> PagedAttention:
    """`attention` with its heads split over the mesh, and its sequences over data shards; itself on one device.

    `pool` is from `pool_on_mesh`. With data shards the batch is one part after another, its two counts are [shards].
    """
    over_data = mesh.shape["data"] > 1
    if split_of(mesh, "heads") == 1 and not over_data:
        return attention
    pool_specs = jax.tree.map(lambda leaf: leaf.sharding.spec, pool)

    def attend(
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
        kv = _KV_HEADS if options.value_dim is None else _LATENT

        def local(
            q: Array, k: Array, v: Array | None, pool: Pool, layer: Any, batch: RaggedBatch, sinks: Any, window: Any
        ) -> tuple[Array, Pool]:
            if over_data:
                batch = dataclasses.replace(batch, num_decode=batch.num_decode[0], num_seqs=batch.num_seqs[0])
            return attention(q, k, v, pool, layer, batch, options, sinks, window)

        # check_vma would have every body say which of its values differ from device to device.
        split = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(_HEADS, kv, kv, pool_specs, _WHOLE, _BATCH if over_data else _WHOLE, _SINKS, _WHOLE),
            out_specs=(_HEADS, pool_specs),
            check_vma=False,
        )
        return split(q, k, v, pool, layer, batch, sinks, window)

    return attend

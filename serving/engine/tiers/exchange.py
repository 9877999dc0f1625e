"""Pages out of the pool of an executor and into it, many at a time.

Two programs for each of a few batch sizes, compiled at the start: `gather` copies pages behind the last step dispatched
into arrays of their own, `scatter` writes such arrays to pages in place. Every device of a mesh moves its own part of a
page. The numbers travel as words of the same width.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from serving.engine.device_memory import Resident
from serving.engine.tiers.host_pages import PageForm
from serving.engine.tiers.page_tiers import BATCHES
from sharding.mesh import everywhere

MOST_BYTES = 32 << 20  # of a batch
STAGING_BYTES = 2 * BATCHES * MOST_BYTES  # of a device, for batches in flight in both directions
MOST_PAGES = 64
_GROWTH = 4
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}

Staged = tuple[Array, ...]  # one [batch, ...] a leaf of the pool, on the devices


class PageExchange:
    """Of the pool that `resident` holds when it is asked."""

    def __init__(self, resident: Resident, mesh: Mesh) -> None:
        leaves, self._tree = jax.tree.flatten(resident.pool)
        self._resident = resident
        self._num_pages = leaves[0].shape[0]
        self._shardings = tuple(leaf.sharding for leaf in leaves)
        self.form = PageForm(
            tuple(leaf.shape[1:] for leaf in leaves), tuple(_words(leaf.dtype).name for leaf in leaves)
        )
        self.batches = batch_sizes(self.form.num_bytes)
        whole = everywhere(mesh)
        pool = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), leaves)
        self._gather: dict[int, jax.stages.Compiled] = {}
        self._scatter: dict[int, jax.stages.Compiled] = {}
        for size in self.batches:
            index = jax.ShapeDtypeStruct((size,), jnp.int32, sharding=whole)
            gather = jax.jit(_gather, out_shardings=self._shardings)
            self._gather[size] = gather.lower(pool, index).compile()
            scatter = jax.jit(_scatter, donate_argnums=0, out_shardings=list(self._shardings))
            self._scatter[size] = scatter.lower(pool, self._staged(size), index).compile()

    @property
    def count(self) -> int:
        """Programs."""
        return len(self._gather) + len(self._scatter)

    def gather(self, pages: Sequence[int]) -> Staged:
        """Copies of `pages`; what lies behind them means nothing."""
        size = self.size_for(len(pages))
        index = np.zeros(size, np.int32)
        index[: len(pages)] = pages
        gathered = self._gather[size](self._leaves(), index)
        for array in gathered:
            array.copy_to_host_async()
        return gathered

    def stage(self, arrays: Sequence[np.ndarray]) -> Staged:
        """Host arrays, one a leaf and as long as one of `batches`, on the devices. Waits until they are there."""
        return jax.block_until_ready(tuple(map(jax.device_put, arrays, self._shardings)))

    def scatter(self, staged: Staged, places: Sequence[int | None]) -> None:
        """Writes staged pages to places of the pool; None: that one is left out."""
        index = np.full(staged[0].shape[0], self._num_pages, np.int32)
        index[: len(places)] = [self._num_pages if place is None else place for place in places]
        leaves = self._scatter[len(index)](self._leaves(), staged, index)
        self._resident.pool = jax.tree.unflatten(self._tree, leaves)

    def size_for(self, count: int) -> int:
        return next(size for size in self.batches if size >= count)

    def _leaves(self) -> list[Array]:
        return jax.tree.leaves(self._resident.pool)

    def _staged(self, size: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        described = zip(self.form.shapes, self.form.words, self._shardings, strict=True)
        return tuple(jax.ShapeDtypeStruct((size, *shape), word, sharding=lies) for shape, word, lies in described)


def batch_sizes(page_bytes: int) -> tuple[int, ...]:
    """The batches compiled for pages of that size, ascending; at least two, since XLA turns a scatter of one row into a
    select over the whole pool."""
    most = max(2, min(MOST_PAGES, MOST_BYTES // page_bytes))
    sizes = {most}
    size = 2
    while size < most:
        sizes.add(size)
        size *= _GROWTH
    return tuple(sorted(sizes))


def _words(dtype: Any) -> Any:
    return jnp.dtype(_WORDS[jnp.dtype(dtype).itemsize])


def _as_words(leaf: Array) -> Array:
    return lax.bitcast_convert_type(leaf, _words(leaf.dtype))


def _gather(pool: list[Array], pages: Array) -> tuple[Array, ...]:
    """[batch, ...] of each leaf."""
    return tuple(_as_words(leaf).at[pages].get(mode="clip") for leaf in pool)


def _scatter(pool: list[Array], staged: Staged, pages: Array) -> list[Array]:
    """A page behind the last one is dropped."""
    written = [_as_words(leaf).at[pages].set(part, mode="drop") for leaf, part in zip(pool, staged, strict=True)]
    return [lax.bitcast_convert_type(words, leaf.dtype) for words, leaf in zip(written, pool, strict=True)]

"""How a TPU keeps pages: one flat row of lanes a position, and the lanes in which each head stands.

A pool [pages, L, page_size, 2K, C] is right for a TPU only where C is 128 and the type has 16 bits or more; for
other shapes XLA copies all of it around the kernel. Here a position is one row of the heads' numbers, padded to
whole tiles of 128 lanes:

    pool    [pages, L, page_size, W]     k0 v0 k1 v1 ... | zeros        W = 2*K*C rounded up to 128
    scales  [pages, L, 2K, N]            of 8-bit pages: positions on the lanes, as the scores have them;
                                         N = page_size rounded up to 128, for XLA would lay fewer lanes otherwise

A head's lanes rarely begin at a tile where C is not 128. They are read through the whole tiles that cover them: the
query stands in zeros at the same offset, so the neighbours' numbers take no part, and of the output only the head's
own lanes are kept. With C = 64 this costs nothing, because the matrix unit pads 64 to 128 anyway.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.ragged import Pool, PoolSpec, QuantizedPages

LANES = 128


def rows_per_tile(dtype: DTypeLike) -> int:
    """Rows of the smallest piece of a page that a copy can move: 8 words of 32 bits deep."""
    return 32 // jnp.dtype(dtype).itemsize


def pool_shape(spec: PoolSpec) -> Pool:
    """The pool of one device that has spec.kv_heads KV heads of its own, as jax.ShapeDtypeStruct.

    Devices that split the KV heads split the last dimension of the values, W each, and the third of the scales.
    """
    layout = RowLayout(spec.kv_heads, spec.head_dim, spec.head_dim if spec.latent else None)
    values = jax.ShapeDtypeStruct((spec.pages, spec.layers, spec.page_size, layout.width), spec.dtype)
    if values.dtype.itemsize > 1:
        return cast(Array, values)
    shape = spec.pages, spec.layers, layout.rows_with_scales, round_up(spec.page_size, LANES)
    return QuantizedPages(cast(Array, values), cast(Array, jax.ShapeDtypeStruct(shape, jnp.float32)))


@dataclass(frozen=True)
class Lanes:
    """The whole tiles of lanes that cover a head's numbers in a row."""

    start: int  # of the tiles
    width: int
    offset: int  # of the head's first number from `start`

    @property
    def of_row(self) -> slice:
        return slice(self.start, self.start + self.width)


@dataclass(frozen=True)
class RowLayout:
    """The order of heads in one row. With a value_dim (latent attention) the row is its own key and value."""

    kv_heads: int
    head_dim: int
    value_dim: int | None = None

    @property
    def width(self) -> int:
        numbers = self.head_dim if self.value_dim is not None else 2 * self.kv_heads * self.head_dim
        return round_up(numbers, LANES)

    @property
    def rows_with_scales(self) -> int:
        """How many scales a position has."""
        return 1 if self.value_dim is not None else 2 * self.kv_heads

    @property
    def value_size(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    def keys(self, head: int) -> Lanes:
        return self._cover(self._key_begin(head), self.key_width)

    def values(self, head: int) -> Lanes:
        return self._cover(self._value_begin(head), self.value_width)

    @property
    def key_width(self) -> int:
        """Lanes of a query row: the same for all heads."""
        return max(_tiles(self._key_begin(head), self.head_dim) for head in range(self.kv_heads))

    @property
    def value_width(self) -> int:
        """Lanes of an output row: the same for all heads."""
        return max(_tiles(self._value_begin(head), self.value_size) for head in range(self.kv_heads))

    def scale_row(self, head: int, *, value: bool) -> int:
        """The place of a head's key or value among the 2K scales of a position (1 where latent)."""
        return 0 if self.value_dim is not None else 2 * head + value

    def rows(self, k: Array, v: Array | None) -> Array:
        """k [T, K, C] and v of this step, or k [T, 1, C] alone where latent, as [T, W]."""
        rows = k if v is None else jnp.stack([k, v], axis=2)
        rows = rows.reshape(k.shape[0], -1)
        return jnp.pad(rows, ((0, 0), (0, self.width - rows.shape[1])))

    def place_queries(self, q: Array) -> Array:
        """[N, K, G, C] to [N, K, G, key_width]: each head's query at its key's offset, in zeros."""
        offsets = [self.keys(head).offset for head in range(self.kv_heads)]
        room = self.key_width - self.head_dim
        if len(set(offsets)) == 1:
            return jnp.pad(q, ((0, 0), (0, 0), (0, 0), (offsets[0], room - offsets[0])))
        return jnp.stack(
            [jnp.pad(q[:, head], ((0, 0), (0, 0), (at, room - at))) for head, at in enumerate(offsets)], axis=1
        )

    def take_values(self, out: Array) -> Array:
        """[N, K, G, value_width] to [N, K, G, C or value_dim]."""
        offsets = [self.values(head).offset for head in range(self.kv_heads)]
        if len(set(offsets)) == 1:
            return out[..., offsets[0] : offsets[0] + self.value_size]
        return jnp.stack([out[:, head, :, at : at + self.value_size] for head, at in enumerate(offsets)], axis=1)

    def _key_begin(self, head: int) -> int:
        return 0 if self.value_dim is not None else 2 * head * self.head_dim

    def _value_begin(self, head: int) -> int:
        return 0 if self.value_dim is not None else (2 * head + 1) * self.head_dim

    def _cover(self, begin: int, width: int) -> Lanes:
        start = min(begin // LANES * LANES, self.width - width)
        return Lanes(start, width, begin - start)


def _tiles(begin: int, size: int) -> int:
    return round_up(begin + size, LANES) - begin // LANES * LANES


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b

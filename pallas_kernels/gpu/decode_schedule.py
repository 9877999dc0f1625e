"""How one decode step is dealt out to a fixed number of CTAs.

A unit is one sequence and one tile of query rows of one KV head; its work is the blocks of keys that its token sees.
All units' blocks lie in one line, sequence after sequence, and every CTA takes the same length of that line: one long
sequence fills the chip as well as many short ones do. What a CTA takes of one unit is a piece.

    units    |    u0     |u1 |        u2             |   u3    |
    CTAs     |    c0     |    c1     |    c2     |    c3     |
    pieces     u0+c0 = 0  1+1 2+1=3     2+2=4      2+3  3+3=6       piece = unit + CTA: each number at most once

Along the line each step takes the next unit or the next CTA, so `unit + CTA` numbers the pieces without a list.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Schedule:
    """Who takes what. Everything is int32; S sequences (rows of the decode bucket), N CTAs."""

    start: Array  # [S] blocks in the line before the sequence's first unit
    count: Array  # [S] blocks of each unit of the sequence; 0: nothing to do
    first_key: Array  # [S] the first position that the sequence's token sees
    kv_len: Array  # [S] one past the last position that it sees
    share: Array  # [1] blocks that each CTA takes
    first_unit: Array  # [N] the unit that holds the CTA's first block
    pieces: Array  # [N] units that the CTA goes through


def schedule(
    kv_lens: Array,  # [S]
    num_decode: Array,  # []
    window: Array | int | None,
    *,
    chunked: bool,
    units: int,  # of one sequence
    keys: int,  # of one block
    ctas: int,
) -> Schedule:
    """Deals the first num_decode sequences to the CTAs, evenly, in blocks of `keys` positions."""
    rows = jnp.arange(kv_lens.shape[0], dtype=jnp.int32)
    kv_len = jnp.where(rows < num_decode, kv_lens, 0).astype(jnp.int32)
    first_key = _first_key(kv_len, window, chunked)
    count = (kv_len + keys - 1) // keys - first_key // keys
    end = units * jnp.cumsum(count, dtype=jnp.int32)
    start = end - units * count
    total = end[-1]
    share = jnp.maximum((total + ctas - 1) // ctas, 1)
    cta = jnp.arange(ctas, dtype=jnp.int32)
    begin, last = cta * share, jnp.minimum((cta + 1) * share, total) - 1
    first_unit, last_unit = (_unit_of(block, start, end, count, units) for block in (begin, last))
    pieces = jnp.where(begin < total, last_unit - first_unit + 1, 0)
    return Schedule(start, count, first_key, kv_len, share[None], first_unit, pieces)


def _first_key(kv_len: Array, window: Array | int | None, chunked: bool) -> Array:
    """[S] the first position that the last token of each sequence sees."""
    if window is None:
        return jnp.zeros_like(kv_len)
    position = jnp.maximum(kv_len - 1, 0)
    window = jnp.asarray(window, jnp.int32)
    return position // window * window if chunked else jnp.maximum(position - window + 1, 0)


def _unit_of(block: Array, start: Array, end: Array, count: Array, units: int) -> Array:
    """The unit that holds each block of the line; of a block beyond the line, some unit."""
    sequence = jnp.sum(end[None, :] <= block[:, None], axis=1, dtype=jnp.int32)
    sequence = jnp.minimum(sequence, start.shape[0] - 1)
    return sequence * units + (block - start[sequence]) // jnp.maximum(count[sequence], 1)

"""What both warpgroups of the decode kernel know: the memory they share, and the piece of work that is at hand."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu.decode_cut import DecodeCut
from pallas_kernels.gpu.decode_schedule import Schedule
from pallas_kernels.gpu.hopper import Ref


class Global(NamedTuple):
    """References to device memory."""

    queries: Ref  # [S, units, N, C]
    pages: Ref  # [pages, L, page_size, 2K, C]
    scales: Ref | None  # [pages, L, page_size / keys, keys, 2K]
    table: Ref  # [S, P]
    layer: Ref  # [1]
    work: Schedule
    outputs: Ref  # [pieces, V, N]
    log_sums: Ref  # [pieces, N]


class Shared(NamedTuple):
    """Shared memory of a CTA. `ready` barriers: the copy has landed; `free`: its reader is done with it."""

    queries: Ref  # [2, N, C]
    keys: Ref  # [stages, keys, C]
    values: Ref  # [stages, keys, C]
    weights: Ref  # [N, keys]
    queries_ready: Ref
    queries_free: Ref
    keys_ready: Ref
    keys_free: Ref
    values_ready: Ref
    values_free: Ref
    wide: Ref | None = None  # [keys, C]: 8-bit keys, then values, in 16 bits


class Piece(NamedTuple):
    """What a CTA takes of one unit."""

    number: Array
    sequence: Array
    unit: Array  # of the sequence
    block: Array  # the first block of keys
    steps: Array
    first_key: Array
    kv_len: Array


def piece_of(cut: DecodeCut, work: Schedule, cta: Array, index: Array) -> Piece:
    unit_number = work.first_unit[cta] + index
    sequence = lax.div(unit_number, cut.units)
    unit = unit_number - sequence * cut.units
    count, first_key, share = work.count[sequence], work.first_key[sequence], work.share[0]
    begin = work.start[sequence] + unit * count
    low = jnp.maximum(cta * share - begin, 0)
    high = jnp.minimum((cta + 1) * share - begin, count)
    block = lax.div(first_key, cut.blocks.keys) + low
    return Piece(unit_number + cta, sequence, unit, block, high - low, first_key, work.kv_len[sequence])


def page_numbers(cut: DecodeCut, device: Global, here: Piece, block: Array) -> tuple[Array, ...]:
    """The pages of a block of keys. Beyond the sequence's ends its outermost pages stand in: the table's other
    entries may be anything."""
    page_size = cut.shape.page_size
    first = lax.div(here.first_key, page_size)
    last = lax.div(here.kv_len - 1, page_size)
    column = lax.div(block * cut.blocks.keys, page_size)
    columns = [jnp.clip(column + i, first, last) for i in range(cut.copies)]
    return tuple(device.table[here.sequence, column] for column in columns)

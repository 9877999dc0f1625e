"""The fetching warpgroup of the decode kernel: pages, from wherever they lie, into rings in shared memory."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.decode_cut import QUERY_BUFFERS, DecodeCut
from pallas_kernels.gpu.decode_pieces import Global, Piece, Shared, page_numbers, piece_of
from pallas_kernels.gpu.hopper import Ref


def fetch(cut: DecodeCut, device: Global, shared: Shared) -> None:
    """The fetching warpgroup: runs ahead of the other, through all pieces of the CTA, as far as the ring lets it."""
    cta = lax.axis_index("cta")
    pieces = device.work.pieces[cta]

    def piece(index: Array, done: Array) -> Array:
        here = piece_of(cut, device.work, cta, index)
        slot = lax.rem(index, QUERY_BUFFERS)
        pl.when(index >= QUERY_BUFFERS)(lambda: plgpu.barrier_wait(shared.queries_free.at[slot]))
        source = device.queries.at[here.sequence, here.unit]
        plgpu.copy_gmem_to_smem(source, shared.queries.at[slot], shared.queries_ready.at[slot])

        def step(i: Array, pages: tuple[Array, ...]) -> tuple[Array, ...]:
            following = page_numbers(cut, device, here, here.block + i + 1)
            _fetch_block(cut, device, shared, here, here.block + i, done + i, pages)
            return following

        lax.fori_loop(0, here.steps, step, page_numbers(cut, device, here, here.block))
        return done + here.steps

    done = lax.fori_loop(0, pieces, piece, jnp.int32(0))
    # A barrier's phases count on: each arrival is waited for, also those that no further copy needs.
    for slot in range(QUERY_BUFFERS):
        pl.when(slot < pieces)(functools.partial(plgpu.barrier_wait, shared.queries_free.at[slot]))
    for slot in range(cut.blocks.stages):
        pl.when(slot < done)(functools.partial(plgpu.barrier_wait, shared.keys_free.at[slot]))
        pl.when(slot < done)(functools.partial(plgpu.barrier_wait, shared.values_free.at[slot]))


def _fetch_block(
    cut: DecodeCut, device: Global, shared: Shared, here: Piece, block: Array, number: Array, pages: tuple[Array, ...]
) -> None:
    """Keys, values and scales of one block, into the ring's slot for the CTA's block of that number."""
    slot = lax.rem(number, cut.blocks.stages)
    again = number >= cut.blocks.stages
    layer = device.layer[0]
    begin = lax.rem(block * cut.blocks.keys, cut.shape.page_size)
    row = 2 * lax.div(here.unit, cut.tiles)

    def copy(target: Ref, ready: Ref, kind: int) -> None:
        for i, page in enumerate(pages):
            source = device.pages.at[page, layer, pl.ds(begin, cut.copied_keys), row + kind]
            place = target.at[slot, pl.ds(i * cut.copied_keys, cut.copied_keys)]
            plgpu.copy_gmem_to_smem(source, place, ready.at[slot])

    pl.when(again)(lambda: plgpu.barrier_wait(shared.keys_free.at[slot]))
    copy(shared.keys, shared.keys_ready, 0)
    pl.when(again)(lambda: plgpu.barrier_wait(shared.values_free.at[slot]))
    copy(shared.values, shared.values_ready, 1)

"""Writes the keys and values of prefill chunks into their pages, in place, before prefill attends to them.

A chunk's tokens lie at any row of the batch and at any row of their pages. A page at a time: fetch the rows of the
batch that belong to it (from the tile of 8 rows before them on) and, unless all of it is new, the page itself; merge;
send it back. The copies of `buffers` pages are under way at a time. Decode writes its rows itself.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged import RaggedBatch
from pallas_kernels.tpu.page_ring import Pages, Ref, div, keep_rows
from pallas_kernels.tpu.pool_layout import LANES, round_up
from pallas_kernels.tpu.walk import following

SUBLANES = 8
NEXT_SEQUENCE, NEXT_PAGE, STARTED = range(3)  # places of the walk's state in SMEM
LAYER, NUM_DECODE, NUM_SEQS = range(3)  # places of the scalar operands


def write_prefill(
    new: Pages,  # values [T, W] float32, scales [T, 2K]
    pool: Pages,
    layer: Array,
    batch: RaggedBatch,
    buffers: int,
    vmem_limit: int | None,
    interpret: Any,
) -> Pages:
    """The pool with the rows of all sequences from num_decode to num_seqs."""
    page_size, width = pool.values.shape[2:]
    rows, lanes = source_rows(page_size), source_lanes(page_size)
    # A page may begin before its sequence's first token, and before the batch's: hence a page's room in front.
    values = jnp.pad(new.values, ((page_size, rows), (0, 0)))
    values = jnp.pad(values, ((0, -values.shape[0] % SUBLANES), (0, 0)))
    source = Pages(values)
    if new.scales is not None:
        front = round_up(page_size, LANES)
        scales = jnp.pad(new.scales.T, ((0, 0), (front, lanes)))
        source = Pages(values, jnp.pad(scales, ((0, 0), (0, -scales.shape[1] % LANES))))
    whole = pl.BlockSpec(memory_space=pl.ANY)
    specs = jax.tree.map(lambda _: whole, pool)
    staged = Pages(pltpu.VMEM((buffers, rows, width), jnp.float32))
    page = Pages(pltpu.VMEM((buffers, page_size, width), pool.values.dtype))
    if pool.scales is not None:
        shape = pool.scales.shape[2:]
        staged = staged._replace(scales=pltpu.VMEM((buffers, shape[0], lanes), jnp.float32))
        page = page._replace(scales=pltpu.VMEM((buffers, *shape), jnp.float32))
    (written,) = pl.pallas_call(
        partial(_kernel, table_width=batch.page_table.shape[1]),
        out_shape=(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pool),),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(1,),
            in_specs=[jax.tree.map(lambda _: whole, source), specs],
            out_specs=(specs,),
            scratch_shapes=[
                staged,
                page,
                page,
                pltpu.SemaphoreType.DMA((buffers,)),
                pltpu.SemaphoreType.DMA((buffers,)),
                pltpu.SMEM((3,), jnp.int32),
            ],
        ),
        input_output_aliases={4 + len(jax.tree.leaves(source)) + i: i for i in range(len(jax.tree.leaves(pool)))},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=vmem_limit),
        interpret=interpret,
        name="write_prefill_pages",
    )(
        batch.page_table.reshape(-1),
        batch.kv_lens,
        batch.cu_q_lens,
        jnp.stack([layer, batch.num_decode, batch.num_seqs]),
        source,
        pool,
    )
    return written


def source_rows(page_size: int) -> int:
    """Rows of the batch that are fetched for one page."""
    return round_up(page_size, SUBLANES) + SUBLANES


def source_lanes(page_size: int) -> int:
    return round_up(page_size, LANES) + LANES


@dataclass(frozen=True)
class Part:
    """The part of a sequence's chunk that one page holds."""

    sequence: Array
    place: Array  # of the page in the sequence
    first: Array  # row of the page
    end: Array
    token: Array  # of the batch that belongs to row 0 of the page; negative where the chunk begins further down
    covers: Array  # whether nothing of the page is older


def _kernel(
    table: Ref,
    lens: Ref,
    starts: Ref,
    scalars: Ref,
    source: Pages,
    before: Pages,  # `pool` is the same memory
    pool: Pages,
    staged: Pages,
    fetched: Pages,
    outgoing: Pages,
    arrived: Ref,
    sent: Ref,
    walk: Ref,
    *,
    table_width: int,
) -> None:
    del before
    buffers, page_size = fetched.values.shape[:2]
    layer, num_seqs = scalars[LAYER], scalars[NUM_SEQS]

    def part_of(sequence: Array, place: Array) -> Part:
        new_from = lens[sequence] - (starts[sequence + 1] - starts[sequence])
        base = place * page_size
        first = jnp.maximum(new_from - base, 0)
        end = jnp.minimum(lens[sequence] - base, page_size)
        return Part(sequence, place, first, end, starts[sequence] + base - new_from, (first == 0) & (end == page_size))

    def first_place(sequence: Array) -> Array:
        at = jnp.minimum(sequence, lens.shape[0] - 1)
        return div(lens[at] - (starts[at + 1] - starts[at]), page_size)

    def following_part(part: Part) -> tuple[Array, Array]:
        more = (part.place + 1) * page_size < lens[part.sequence]
        after = following(part.sequence + 1, starts, num_seqs)
        return jnp.where(more, part.sequence, after), jnp.where(more, part.place + 1, first_place(after))

    def fetches(part: Part, slot: Array, *, old: bool) -> list[Any]:
        if old:
            page = table[part.sequence * table_width + part.place]
            pairs = zip(pool, fetched, strict=True)
            return [_copy(a.at[page, layer], b.at[slot], arrived.at[slot]) for a, b in pairs if a is not None]
        row = pl.multiple_of(div(part.token + page_size, SUBLANES) * SUBLANES, SUBLANES)
        from_rows = source.values.at[pl.ds(row, staged.values.shape[1])]
        copies = [_copy(from_rows, staged.values.at[slot], arrived.at[slot])]
        if source.scales is not None:
            lanes = staged.scales.shape[2]
            lane = pl.multiple_of(div(part.token + lanes - LANES, LANES) * LANES, LANES)
            from_lanes = source.scales.at[:, pl.ds(lane, lanes)]
            copies.append(_copy(from_lanes, staged.scales.at[slot], arrived.at[slot]))
        return copies

    def each_fetch(part: Part, slot: Array, act: Any) -> None:
        for copy in fetches(part, slot, old=False):
            act(copy)

        @pl.when(~part.covers)
        def _() -> None:
            for copy in fetches(part, slot, old=True):
                act(copy)

    def sends(page: Array, slot: Array) -> list[Any]:
        pairs = zip(outgoing, pool, strict=True)
        return [_copy(a.at[slot], b.at[page, layer], sent.at[slot]) for a, b in pairs if b is not None]

    def start_next() -> None:
        sequence, place = walk[NEXT_SEQUENCE], walk[NEXT_PAGE]

        @pl.when(sequence < num_seqs)
        def _() -> None:
            part = part_of(sequence, place)
            each_fetch(part, lax.rem(walk[STARTED], buffers), lambda copy: copy.start())
            walk[STARTED] += 1
            walk[NEXT_SEQUENCE], walk[NEXT_PAGE] = following_part(part)

    def merge(part: Part, slot: Array) -> None:
        added = _from(staged.values[slot], lax.rem(part.token + page_size, SUBLANES), 0)[:page_size]
        old = fetched.values[slot]
        outgoing.values[slot] = keep_rows(old, lambda row: (row < part.first) | (row >= part.end), added)
        if pool.scales is not None:
            front = staged.scales.shape[2] - LANES
            added = _from(staged.scales[slot], lax.rem(part.token + front, LANES), 1)[:, :front]
            lane = lax.broadcasted_iota(jnp.int32, added.shape, 1)
            old = fetched.scales[slot]
            outgoing.scales[slot] = jnp.where((lane >= part.first) & (lane < part.end), added, old)

    begin = following(scalars[NUM_DECODE], starts, num_seqs)
    walk[NEXT_SEQUENCE], walk[NEXT_PAGE], walk[STARTED] = begin, first_place(begin), jnp.int32(0)
    for _ahead in range(buffers - 1):
        start_next()

    def one(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        sequence, place, number = state
        part, slot = part_of(sequence, place), lax.rem(number, buffers)
        start_next()
        each_fetch(part, slot, lambda copy: copy.wait())

        @pl.when(number >= buffers)
        def _() -> None:
            for copy in sends(jnp.int32(0), slot):
                copy.wait()

        merge(part, slot)
        for copy in sends(table[sequence * table_width + place], slot):
            copy.start()
        after: Any = (*following_part(part), number + 1)
        return after

    state = begin, first_place(begin), jnp.int32(0)
    count: Any = lax.while_loop(lambda state: state[0] < num_seqs, one, state)[2]
    for age in range(1, buffers + 1):

        @pl.when(count >= age)
        def _(age: int = age) -> None:
            for copy in sends(jnp.int32(0), lax.rem(count - age, buffers)):
                copy.wait()


def _from(x: Array, offset: Array, axis: int) -> Array:
    """x rotated so that `offset` comes first: a slice can't begin at any row, a rotation can."""
    size = x.shape[axis]
    return pltpu.roll(x, lax.rem(size - offset, size), axis)


def _copy(source: Ref, to: Ref, semaphore: Ref) -> Any:
    return pltpu.make_async_copy(source, to, semaphore)

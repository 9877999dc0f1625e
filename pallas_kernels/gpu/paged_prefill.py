"""Prefill chunks over paged keys and values, for Hopper (sm_90a), in Mosaic GPU.

One program per SM walks over a list of work items; an item is ROWS query rows of one sequence for one KV head. Three
warpgroups share a program: two attend, 64 rows each, and one fetches.

    pages in GMEM --TMA, page by page--> ring of K and V units in SMEM --wgmma--> scores, output in registers
    q in GMEM ------TMA, once an item--> q in SMEM -----------------------^

The ring holds K and V of successive key blocks in turn: unit 2i is K of block i, unit 2i+1 its V. Pages in 8 bits land
in a ring of their own; the fetching warpgroup scales them to bfloat16 on the way into the ring, so that the attending
ones see no difference.

A tile's rows are tokens, or tokens times query heads of one KV head (`BlockSizes.heads`): row r of a sequence is then
head r % heads of token r // heads. Positions are compared without a division, as key <= r // heads means
key * heads <= r for whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu.decode_merge import LOAD_INDEX
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages, RaggedBatch

TILE = 64  # rows of one warpgroup: the M of a wgmma
ROWS = 2 * TILE  # rows of one work item
SHARED_MEMORY = 232_448  # bytes that one program can have
BARRIERS = 1_024  # of them, kept for barriers and alignment
STREAMING_MULTIPROCESSORS = 132  # of an H100 SXM or H200
LOWEST = -1e30  # the maximum of a row that saw nothing yet: finite, so that its distance to a hidden score is infinite
LOG2_E = math.log2(math.e)
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
PAGE_SIZES = (16, 32, 64, 128, 256)
PAGE_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.int8), jnp.dtype(jnp.float8_e4m3fn))
ATTENDING = 2  # warpgroups that attend; the next one fetches

# The columns of the work list.
SEQUENCE, ROW, COUNT, SCALED, BEGIN, END, LENGTH, FIELDS = *range(7), 8

Ref = Any  # a Pallas reference; the public API has no type for it
Carry = tuple[Array, Array, Array]  # running output [TILE, C], maximum [TILE] in powers of two, sum [TILE]


@dataclass(frozen=True)
class BlockSizes:
    """How a kernel call is cut. The derived ones fit shared memory; others may be faster."""

    heads: int  # query heads that share a tile: 1, or a divisor of the heads of a KV head
    keys: int  # keys of one block: one step of the online softmax
    units: int  # slots of the ring; a slot holds K or V of one block
    raw_units: int = 0  # slots of the ring that 8-bit pages land in
    attending_registers: int = 232  # of a thread; multiples of 8
    fetching_registers: int = 40
    programs: int = STREAMING_MULTIPROCESSORS

    @staticmethod
    def derived(q: tuple[int, ...], pool: Pool, sequences: int) -> BlockSizes:
        """For q of shape [T, H, C]."""
        tokens, heads, head_dim = q
        values = pool.values if isinstance(pool, QuantizedPages) else pool
        kv_heads = values.shape[3] // 2
        # Folding heads fills the tiles of short chunks, and costs a transposition of q and of the output.
        folded = kv_heads == 1 or tokens <= TILE // 2 * sequences
        quantized = isinstance(pool, QuantizedPages)
        keys = ROWS if head_dim < 128 or (head_dim == 128 and not quantized) else TILE
        raw_units = 2 if quantized else 0
        left = SHARED_MEMORY - BARRIERS - ROWS * head_dim * 2 - _staged_bytes(head_dim) - raw_units * keys * head_dim
        fetching = 88 if quantized else 40  # together with the others' 504 = 3 * 168, what the program starts with
        return BlockSizes(
            heads=heads // kv_heads if folded else 1,
            keys=keys,
            units=min(left // (keys * head_dim * 2), 8),
            raw_units=raw_units,
            attending_registers=(504 - fetching) // 2,
            fetching_registers=fetching,
        )


def refusal(
    options: AttentionOptions, *, heads: int, kv_heads: int, head_dim: int, page_size: int, page_dtype: Any
) -> str | None:
    """Why this kernel cannot serve attention of that shape, as a sentence; None where it can."""
    page_dtype = jnp.dtype(page_dtype)
    if options.chunked:
        return "the GPU prefill kernel has no chunked window: it is for the reference body"
    if options.value_dim is not None:
        return "the GPU prefill kernel keeps K and V in rows of their own: value_dim is for the reference body"
    if options.scale <= 0:
        return f"the GPU prefill kernel takes a scale above 0, not {options.scale}: it finds maxima before it scales"
    if page_dtype not in PAGE_DTYPES:
        names = ", ".join(dtype.name for dtype in PAGE_DTYPES)
        return f"the GPU prefill kernel takes pages of {names}, not {page_dtype.name}"
    if head_dim not in HEAD_DIMS:
        return f"the GPU prefill kernel takes head sizes {HEAD_DIMS}, not {head_dim}"
    if page_size not in PAGE_SIZES:
        return f"the GPU prefill kernel takes pages of {PAGE_SIZES} positions, not {page_size}"
    if kv_heads < 1 or heads % kv_heads:
        return f"{heads} query heads do not share {kv_heads} KV heads evenly"
    if page_dtype.itemsize == 1 and page_size < TILE:
        return f"the GPU prefill kernel takes 8-bit pages of {TILE} positions or more, not {page_size}"
    return None


def prefill(
    q: Array,  # [T, H, C] bfloat16
    pool: Pool,  # [pages, L, page_size, 2K, C]; holds the new K and V already
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None = None,  # [H]
    window: Array | int | None = None,  # []
    *,
    blocks: BlockSizes | None = None,
) -> Array:  # [T, H, C]; rows of tokens that are in no prefill chunk hold anything
    """Attention of the sequences after num_decode. Raises ValueError for what `refusal` names."""
    tokens, heads, head_dim = q.shape
    values = pool.values if isinstance(pool, QuantizedPages) else pool
    _, _, page_size, kv_rows, _ = values.shape
    reason = refusal(
        options,
        heads=heads,
        kv_heads=kv_rows // 2,
        head_dim=head_dim,
        page_size=page_size,
        page_dtype=values.dtype,
    )
    if q.dtype != jnp.bfloat16:
        reason = f"the GPU prefill kernel takes queries in bfloat16, not {q.dtype}"
    if reason is not None:
        raise ValueError(reason)
    blocks = blocks or BlockSizes.derived(q.shape, pool, batch.kv_lens.shape[0])
    kernel = _Prefill.of(q.shape, pool, options, blocks, sunk=sinks is not None, windowed=window is not None)
    items, count = work_list(batch, tokens, blocks, window)
    operands = {
        "items": items,
        "count": count,
        "table": batch.page_table,
        "layer": jnp.asarray(layer, jnp.int32).reshape(1),
        "values": values,
    }
    if isinstance(pool, QuantizedPages):
        operands["scales"] = pool.scales
    if window is not None:
        operands["window"] = jnp.asarray(window, jnp.int32).reshape(1)
    if sinks is not None:
        operands["sinks"] = _sinks_by_phase(sinks, blocks.heads)
    return _unfolded(kernel.call(_folded(q, blocks.heads), operands), q.shape, blocks.heads)


def work_list(batch: RaggedBatch, tokens: int, blocks: BlockSizes, window: Array | int | None) -> tuple[Array, Array]:
    """([W, FIELDS] int32, [1] int32): the tiles of all prefill chunks, those with most keys first, and how many.

    A tile is ROWS rows of a sequence, by: SEQUENCE; ROW, its first row in the folded batch; COUNT, its rows;
    SCALED, `heads` times the first row's position, plus that row's head; BEGIN and END, its blocks of keys;
    LENGTH, the positions of its sequence.
    """
    sequences, heads = batch.kv_lens.shape[0], blocks.heads
    row = jnp.arange(sequences)
    live = (row >= batch.num_decode) & (row < batch.num_seqs)
    rows = jnp.where(live, batch.cu_q_lens[1:] - batch.cu_q_lens[:-1], 0) * heads
    tiles = _cdiv(rows, ROWS)
    ends = jnp.cumsum(tiles)
    tile = jnp.arange(sequences + tokens * heads // ROWS)
    sequence = jnp.minimum(jnp.searchsorted(ends, tile, side="right", method="compare_all"), sequences - 1)
    offset = (tile - (ends - tiles)[sequence]) * ROWS
    count = jnp.minimum(rows[sequence] - offset, ROWS)
    length = batch.kv_lens[sequence]
    scaled = length * heads - rows[sequence] + offset
    end = _cdiv((scaled + count - 1) // heads + 1, blocks.keys)
    begin = jnp.zeros_like(end)
    if window is not None:
        begin = jnp.maximum(scaled // heads + 1 - jnp.minimum(window, length), 0) // blocks.keys
    fields = (sequence, batch.cu_q_lens[sequence] * heads + offset, count, scaled, begin, end, length, length)
    order = jnp.argsort(jnp.where(tile < ends[-1], begin - end, 1))
    return jnp.stack(fields, axis=1).astype(jnp.int32)[order], ends[-1:].astype(jnp.int32)


def _folded(q: Array, heads: int) -> Array:
    """[T, H, C] as it is for one head a tile, else [H / heads, T * heads, C]; both with TILE rows at least."""
    tokens, all_heads, head_dim = q.shape
    if heads == 1:
        return jnp.pad(q, ((0, max(TILE - tokens, 0)), (0, 0), (0, 0)))
    rows = q.reshape(tokens, all_heads // heads, heads, head_dim).transpose(1, 0, 2, 3)
    rows = rows.reshape(all_heads // heads, tokens * heads, head_dim)
    return jnp.pad(rows, ((0, 0), (0, max(TILE - tokens * heads, 0)), (0, 0)))


def _unfolded(out: Array, shape: tuple[int, ...], heads: int) -> Array:
    tokens, all_heads, head_dim = shape
    if heads == 1:
        return out[:tokens]
    rows = out[:, : tokens * heads].reshape(all_heads // heads, tokens, heads, head_dim)
    return rows.transpose(1, 0, 2, 3).reshape(shape)


def _sinks_by_phase(sinks: Array, heads: int) -> Array:
    """[H / heads, heads, TILE]: the sinks of a tile's rows where its first row is of head 0, 1, ..."""
    head = (jnp.arange(heads)[:, None] + jnp.arange(TILE)) % heads
    return (sinks.astype(jnp.float32) * LOG2_E).reshape(-1, heads)[:, head]


def _cdiv(a: Any, b: int) -> Any:
    return (a + b - 1) // b


def _staged_columns(head_dim: int) -> int:
    return head_dim if head_dim <= 128 else head_dim // 2


def _staged_bytes(head_dim: int) -> int:
    return ROWS * _staged_columns(head_dim) * 2


def _swizzled(head_dim: int, dtype: jnp.dtype) -> tuple[Any, ...]:
    """The widest swizzle whose atoms fill a row of head_dim numbers; numbers of 8 bits lie as those of 16 do."""
    columns = _converted_columns(head_dim)
    if columns * dtype.itemsize < 32:
        return ()
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(columns * dtype.itemsize)


def _converted_columns(head_dim: int) -> int:
    """Of a unit, what the fetching warpgroup takes into its few registers at once."""
    return next(width for width in (64, 32, 16) if head_dim % width == 0)


def _add_weighted_values(output: Array, weights: Array, values: Ref) -> Array:
    """output [TILE, C] + weights [TILE, keys] @ values [keys, C], in place in the output's registers."""

    def multiply(accumulator: Ref) -> None:
        plgpu.wgmma(accumulator, weights, values)

    sums: Any = plgpu.ACC.init(output)  # pyright: ignore[reportPrivateImportUsage] (public; jax lists it elsewhere)
    return pl.run_state(multiply)(sums)


@dataclass(frozen=True)
class _Item:
    """One work item as a program sees it: scalars read from the list."""

    sequence: Array
    row: Array
    count: Array
    scaled: Array
    begin: Array
    end: Array
    length: Array
    head: Array  # of the tile: a query head, or where heads are folded a group of them
    kv_head: Array


@dataclass(frozen=True)
class _Prefill:
    """Everything about one call that is known when it is traced; its methods are the kernel."""

    blocks: BlockSizes
    options: AttentionOptions
    head_dim: int
    page_size: int
    tile_heads: int  # tiles side by side: H / blocks.heads
    tile_heads_per_kv_head: int
    page_dtype: jnp.dtype
    quantized: bool
    sunk: bool
    windowed: bool

    @staticmethod
    def of(
        q: tuple[int, ...], pool: Pool, options: AttentionOptions, blocks: BlockSizes, *, sunk: bool, windowed: bool
    ) -> _Prefill:
        _, heads, head_dim = q
        values = pool.values if isinstance(pool, QuantizedPages) else pool
        group = heads // (values.shape[3] // 2)
        if group % blocks.heads:
            raise ValueError(f"blocks.heads is {blocks.heads}: it must divide the {group} query heads of a KV head")
        if blocks.keys % TILE or blocks.keys > ROWS:
            raise ValueError(f"blocks.keys is {blocks.keys}: it must be {TILE} or {ROWS}")
        return _Prefill(
            blocks=blocks,
            options=options,
            head_dim=head_dim,
            page_size=values.shape[2],
            tile_heads=heads // blocks.heads,
            tile_heads_per_kv_head=group // blocks.heads,
            page_dtype=values.dtype,
            quantized=isinstance(pool, QuantizedPages),
            sunk=sunk,
            windowed=windowed,
        )

    @property
    def fetches(self) -> int:
        """TMA copies that fill one unit."""
        return max(1, self.blocks.keys // self.page_size)

    @property
    def fetched(self) -> int:
        """Positions that one copy brings."""
        return min(self.blocks.keys, self.page_size)

    def call(self, q: Array, operands: dict[str, Array]) -> Array:
        """The kernel over folded q; the output has its shape."""
        names = list(operands)

        def prefill_chunks(q_ref: Ref, *refs: Ref, **scratch: Ref) -> None:
            ins = dict(zip(names, refs[:-1], strict=True))
            self.run(_Refs(q=q_ref, out=refs[-1], ins=ins, **scratch))

        kernel = plgpu.kernel(
            prefill_chunks,
            out_type=jax.ShapeDtypeStruct(q.shape, q.dtype),
            scratch_types=self.scratch(),
            grid=(self.blocks.programs,),
            grid_names=("program",),
            num_threads=ATTENDING + 1,
            thread_name="warpgroup",
            # By name, as the default of jax 0.11 infers layouts, which this kernel states.
            compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        )
        return kernel(q, *operands.values())

    def scratch(self) -> dict[str, Any]:
        blocks, head_dim, bfloat16 = self.blocks, self.head_dim, jnp.dtype(jnp.bfloat16)
        wide = _swizzled(head_dim, bfloat16)
        types = {
            "queries": plgpu.SMEM((ATTENDING, TILE, head_dim), bfloat16, transforms=wide),
            "staged": plgpu.SMEM((ATTENDING, TILE, _staged_columns(head_dim)), bfloat16),
            "ring": plgpu.SMEM((blocks.units, blocks.keys, head_dim), bfloat16, transforms=wide),
            "queries_ready": plgpu.Barrier(num_barriers=ATTENDING),
            "ready": plgpu.Barrier(num_arrivals=1 if self.quantized else self.fetches, num_barriers=blocks.units),
            "free": plgpu.Barrier(num_arrivals=ATTENDING, num_barriers=blocks.units),
            "turn": plgpu.Barrier(num_arrivals=ATTENDING),
            "landed": plgpu.Barrier(num_arrivals=self.fetches, num_barriers=max(blocks.raw_units, 1)),
        }
        if self.quantized:
            shape = (blocks.raw_units, blocks.keys, head_dim)
            types["raw"] = plgpu.SMEM(shape, self.page_dtype, transforms=_swizzled(head_dim, self.page_dtype))
        return types

    def run(self, refs: _Refs) -> None:
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup < ATTENDING)
        def _() -> None:
            plgpu.set_max_registers(self.blocks.attending_registers, action="increase")
            self.for_each_item(refs, lambda index, unit: self.attend(refs, index, unit, warpgroup))

        @pl.when(warpgroup == ATTENDING)
        def _() -> None:
            plgpu.set_max_registers(self.blocks.fetching_registers, action="decrease")
            fetch = self.convert if self.quantized else self.fetch
            units = self.for_each_item(refs, lambda index, unit: fetch(refs, self.item(refs, index), unit))
            # A warpgroup that waits on a barrier has to see all of its phases, so the last release of each slot too.
            used = jnp.minimum(units, self.blocks.units)
            lax.fori_loop(0, used, lambda slot, _: plgpu.barrier_wait(refs.free.at[slot]), None)

    def for_each_item(self, refs: _Refs, work: Callable[[Array, Array], None]) -> Array:
        """Runs `work` with the index of each item of this program and the units before it. Returns the units of all.

        The rounds go to and fro over the programs: who had the longest item of one round has the shortest of the next.
        """
        programs, program = self.blocks.programs, lax.axis_index("program")
        total = refs.ins["count"][0] * self.tile_heads
        rounds, rest = lax.div(total, programs), lax.rem(total, programs)

        def place(turn: Array) -> Array:
            return jnp.where(lax.rem(turn, 2) == 0, program, programs - 1 - program)

        def one(turn: Array, unit: Array) -> Array:
            index = turn * programs + place(turn)
            work(index, unit)
            item = self.item(refs, index)
            return unit + 2 * (item.end - item.begin)

        mine = rounds + jnp.where(place(rounds) < rest, 1, 0)
        return lax.fori_loop(0, mine, one, jnp.int32(0))

    def item(self, refs: _Refs, index: Array) -> _Item:
        tile, head = lax.div(index, self.tile_heads), lax.rem(index, self.tile_heads)
        fields = [refs.ins["items"][tile, field] for field in range(LENGTH + 1)]
        return _Item(*fields, head=head, kv_head=lax.div(head, self.tile_heads_per_kv_head))

    # The attending warpgroups.

    def attend(self, refs: _Refs, index: Array, unit: Array, warpgroup: Array) -> None:
        item = self.item(refs, index)
        queries = refs.queries.at[warpgroup]
        first = warpgroup * TILE
        plgpu.copy_gmem_to_smem(self.rows_of(refs.q, item, first, TILE), queries, refs.queries_ready.at[warpgroup])
        plgpu.barrier_wait(refs.queries_ready.at[warpgroup])
        scaled, shift = item.scaled + first, unit - 2 * item.begin
        carry = self.empty(refs, item, scaled)
        pl.when(warpgroup == 1)(lambda: self.take_turns(refs))

        def step(block: Array, carry: Carry, *, masked: bool) -> Carry:
            return self.attend_block(refs, warpgroup, block, shift + 2 * block, scaled, carry, masked=masked)

        # Only the blocks on the edges of what the tile sees are masked.
        heads, keys = self.blocks.heads, self.blocks.keys
        inside_end = lax.div(lax.div(scaled, heads) + 1, keys)
        inside = item.begin
        if self.windowed:
            last = lax.div(scaled + TILE - 1, heads)
            hidden = jnp.maximum(last + 1 - self.window(refs, item), 0)
            inside = jnp.clip(lax.div(hidden + keys - 1, keys), item.begin, item.end)
            carry = lax.fori_loop(item.begin, inside, lambda i, c: step(i, c, masked=True), carry)
        inside_end = jnp.clip(inside_end, inside, item.end)
        carry = lax.fori_loop(inside, inside_end, lambda i, c: step(i, c, masked=False), carry)
        output, _, total = lax.fori_loop(inside_end, item.end, lambda i, c: step(i, c, masked=True), carry)

        pl.when(warpgroup == 0)(lambda: self.take_turns(refs))
        output = output / lax.broadcast_in_dim(jnp.maximum(total, 1e-30), output.shape, [0])
        self.store(refs, self.item(refs, index), first, output.astype(jnp.bfloat16), warpgroup)

    def window(self, refs: _Refs, item: _Item) -> Array:
        """At most the sequence's length, which hides nothing and keeps sums from overflowing."""
        return jnp.minimum(refs.ins["window"][0], item.length)

    def take_turns(self, refs: _Refs) -> None:
        """The attending warpgroups meet: one does its softmax while the other has the tensor cores."""
        plgpu.barrier_arrive(refs.turn)
        plgpu.barrier_wait(refs.turn)

    def empty(self, refs: _Refs, item: _Item, scaled: Array) -> Carry:
        """The online softmax before any key. A sink is a key that was seen and has no value."""
        rows = plgpu.Layout.WGMMA.reduce(1)
        output = plgpu.layout_cast(jnp.zeros((TILE, self.head_dim), jnp.float32), plgpu.Layout.WGMMA)
        if self.sunk:
            phase = lax.rem(scaled, self.blocks.heads)
            maximum = plgpu.load(refs.ins["sinks"].at[item.head, phase], *LOAD_INDEX, layout=rows, optimized=False)
            return output, maximum, plgpu.layout_cast(jnp.ones((TILE,), jnp.float32), rows)
        maximum = plgpu.layout_cast(jnp.full((TILE,), LOWEST, jnp.float32), rows)
        return output, maximum, plgpu.layout_cast(jnp.zeros((TILE,), jnp.float32), rows)

    def attend_block(
        self, refs: _Refs, warpgroup: Array, block: Array, unit: Array, scaled: Array, carry: Carry, *, masked: bool
    ) -> Carry:
        output, maximum, total = carry
        key_slot, value_slot = lax.rem(unit, self.blocks.units), lax.rem(unit + 1, self.blocks.units)
        plgpu.barrier_wait(refs.ready.at[key_slot])

        def multiply(accumulator: Ref) -> Array:
            # Looked up anew for each block, by an index that the compiler takes for a new one: it would keep the
            # descriptors of all columns otherwise, 32 registers at 256, for as long as the kernel runs.
            queries = refs.queries.at[lax.optimization_barrier(warpgroup)]
            plgpu.wgmma(accumulator, queries, refs.ring.at[key_slot].transpose((1, 0)))
            self.take_turns(refs)
            return accumulator[...]

        sums = plgpu.ACC((TILE, self.blocks.keys), jnp.float32)  # pyright: ignore[reportPrivateImportUsage] (public; jax lists it elsewhere)
        scores = pl.run_scoped(multiply, sums)
        plgpu.barrier_arrive(refs.free.at[key_slot])
        factor = self.options.scale * LOG2_E
        if self.options.soft_cap is not None:
            scores = jnp.tanh(scores * (self.options.scale / self.options.soft_cap))
            factor = self.options.soft_cap * LOG2_E
        if masked:
            scores = self.mask(refs, scores, block, scaled)
        new_maximum = jnp.maximum(maximum, scores.max(axis=1) * factor)
        weights = jnp.exp2(scores * factor - lax.broadcast_in_dim(new_maximum, scores.shape, [0]))
        shrink = jnp.exp2(maximum - new_maximum)
        output = output * lax.broadcast_in_dim(shrink, output.shape, [0])
        total = total * shrink + weights.sum(axis=1)
        rounded = weights.astype(jnp.bfloat16)
        # Without it the compiler moves the softmax past the turn, and the tensor cores wait for it.
        output, total, new_maximum, rounded = lax.optimization_barrier((output, total, new_maximum, rounded))
        plgpu.barrier_arrive(refs.turn)
        plgpu.barrier_wait(refs.ready.at[value_slot])
        plgpu.barrier_wait(refs.turn)
        output = _add_weighted_values(output, rounded, refs.ring.at[value_slot])
        plgpu.barrier_arrive(refs.free.at[value_slot])
        return output, new_maximum, total

    def mask(self, refs: _Refs, scores: Array, block: Array, scaled: Array) -> Array:
        heads, rows = self.blocks.heads, plgpu.Layout.WGMMA.reduce(1)
        key = plgpu.broadcasted_iota(jnp.int32, scores.shape, 1, layout=plgpu.Layout.WGMMA) * heads
        # Of the block's keys, times heads, those up to the bound are visible. One bound a row: registers are scarce.
        bound = plgpu.broadcasted_iota(jnp.int32, (TILE,), 0, layout=rows) + (scaled - block * self.blocks.keys * heads)
        visible = key <= lax.broadcast_in_dim(bound, scores.shape, [0])
        if self.windowed:
            # A window that hides nothing of the tile is cut to its size, or the product would overflow.
            window = jnp.minimum(refs.ins["window"][0], lax.div(scaled + TILE, heads) + 1)
            visible &= key > lax.broadcast_in_dim(bound - window * heads, scores.shape, [0])
        return jnp.where(visible, scores, -jnp.inf)

    def rows_of(self, ref: Ref, item: _Item, first: Array, count: int) -> Ref:
        """`count` rows of the item's tile in q or in the output, from row `first` of the tile on."""
        rows = pl.ds(item.row + first, count)
        return ref.at[rows, item.head] if self.blocks.heads == 1 else ref.at[item.head, rows]

    def store(self, refs: _Refs, item: _Item, first: Array, output: Array, warpgroup: Array) -> None:
        """The rows that are the item's own: those that follow belong to the next sequence."""
        count = jnp.minimum(item.count - first, TILE)
        pl.when(count == TILE)(lambda: self.store_tile(refs, item, first, output, warpgroup))
        pl.when((count > 0) & (count < TILE))(lambda: self.store_rows(refs, item, first, count, output, warpgroup))

    def store_tile(self, refs: _Refs, item: _Item, first: Array, output: Array, warpgroup: Array) -> None:
        queries = refs.queries.at[warpgroup]
        queries[...] = output
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(queries, self.rows_of(refs.out, item, first, TILE))
        plgpu.wait_smem_to_gmem(0)

    def store_rows(self, refs: _Refs, item: _Item, first: Array, count: Array, output: Array, warpgroup: Array) -> None:
        """Any count is a sum of powers of two. Swizzled rows go by eights, so these pass through plain ones."""
        staged, columns = refs.staged.at[warpgroup], _staged_columns(self.head_dim)
        for column in range(0, self.head_dim, columns):
            staged[...] = output[:, column : column + columns]
            plgpu.commit_smem()
            for size in (64, 32, 16, 8, 4, 2, 1):
                at = lax.div(count, 2 * size) * (2 * size)
                to = self.rows_of(refs.out, item, first + at, size).at[:, pl.ds(column, columns)]

                @pl.when(lax.rem(lax.div(count, size), 2) == 1)
                def _(at: Array = at, to: Ref = to, size: int = size) -> None:
                    plgpu.copy_smem_to_gmem(staged.at[pl.ds(at, size)], to)

            plgpu.wait_smem_to_gmem(0)

    # The fetching warpgroup.

    def fetch(self, refs: _Refs, item: _Item, unit: Array) -> None:
        """Pages in bfloat16 go straight into the ring."""

        def one(block: Array, unit: Array) -> Array:
            beyond = (block + 1) * self.blocks.keys > item.length
            for which in range(2):
                slot = self.freed_slot(refs, unit + which)
                if which == 0:
                    self.copy_pages(refs, item, block, which, refs.ring.at[slot], refs.ready.at[slot])
                    continue
                pl.when(jnp.logical_not(beyond))(
                    lambda slot=slot: self.copy_pages(refs, item, block, 1, refs.ring.at[slot], refs.ready.at[slot])
                )
                pl.when(beyond)(lambda slot=slot: self.copy_last_values(refs, item, block, slot))
            return unit + 2

        lax.fori_loop(item.begin, item.end, one, unit)

    def freed_slot(self, refs: _Refs, unit: Array) -> Array:
        slot = lax.rem(unit, self.blocks.units)
        pl.when(unit >= self.blocks.units)(lambda: plgpu.barrier_wait(refs.free.at[slot]))
        return slot

    def copy_pages(self, refs: _Refs, item: _Item, block: Array, which: Array | int, to: Ref, barrier: Ref) -> None:
        """Starts the copies of one block's keys (which = 0) or values (1), each of which arrives at the barrier."""
        row = 2 * item.kv_head + which

        def copy(part: Array, _: None) -> None:
            offset = part * self.fetched
            page, rows = self.place_of(refs, item, block, offset, self.fetched)
            source = refs.ins["values"].at[page, refs.ins["layer"][0], rows, row]
            plgpu.copy_gmem_to_smem(source, to.at[pl.ds(offset, self.fetched)], barrier)

        lax.fori_loop(0, self.fetches, copy, None)

    def place_of(self, refs: _Refs, item: _Item, block: Array, offset: Array | int, count: int) -> tuple[Array, Any]:
        """The page and the rows in it of `count` positions of a block; past the sequence its last page stands in."""
        position = block * self.blocks.keys + offset
        column = jnp.minimum(lax.div(position, self.page_size), lax.div(item.length - 1, self.page_size))
        page = refs.ins["table"][item.sequence, column]
        return page, pl.ds(0 if count == self.page_size else lax.rem(position, self.page_size), count)

    def copy_last_values(self, refs: _Refs, item: _Item, block: Array, slot: Array) -> None:
        """A page's unwritten rows may hold NaN, and a weight of 0 would not keep it out of a sum: they become 0."""
        ring = refs.ring.at[slot]
        self.copy_pages(refs, item, block, 1, ring, refs.landed.at[0])
        plgpu.barrier_wait(refs.landed.at[0])
        width = _converted_columns(self.head_dim)
        for begin in range(0, self.blocks.keys, TILE):
            for column in range(0, self.head_dim, width):
                part = ring.at[pl.ds(begin, TILE), pl.ds(column, width)]
                values = plgpu.load(part, *LOAD_INDEX, layout=plgpu.Layout.WGMMA)
                part[...] = self.written(values, item, block, begin)
        plgpu.commit_smem()
        for _ in range(self.fetches):
            plgpu.barrier_arrive(refs.ready.at[slot])

    def written(self, values: Array, item: _Item, block: Array, begin: int) -> Array:
        row = plgpu.broadcasted_iota(jnp.int32, values.shape, 0, layout=plgpu.Layout.WGMMA)
        return jnp.where(row < item.length - block * self.blocks.keys - begin, values, jnp.zeros_like(values))

    def convert(self, refs: _Refs, item: _Item, unit: Array) -> None:
        """Pages in 8 bits land in the raw ring, ahead of their conversion into the ring of bfloat16."""
        units, ahead = 2 * (item.end - item.begin), self.blocks.raw_units

        def start(index: Array) -> None:
            slot, block = lax.rem(index, ahead), item.begin + lax.div(index, 2)
            self.copy_pages(refs, item, block, lax.rem(index, 2), refs.raw.at[slot], refs.landed.at[slot])

        lax.fori_loop(0, jnp.minimum(ahead, units), lambda index, _: start(index), None)

        def one(index: Array, _: None) -> None:
            self.convert_unit(refs, item, index, self.freed_slot(refs, unit + index))
            pl.when(index + ahead < units)(lambda: start(index + ahead))

        lax.fori_loop(0, units, one, None)

    def convert_unit(self, refs: _Refs, item: _Item, index: Array, slot: Array) -> None:
        raw_slot, block = lax.rem(index, self.blocks.raw_units), item.begin + lax.div(index, 2)
        row, width = 2 * item.kv_head + lax.rem(index, 2), _converted_columns(self.head_dim)
        layout = plgpu.Layout.WGMMA
        for begin in range(0, self.blocks.keys, TILE):
            page, rows = self.place_of(refs, item, block, begin, TILE)
            scales = refs.ins["scales"].at[page, refs.ins["layer"][0], rows, row]
            scale = plgpu.load(scales, *LOAD_INDEX, layout=layout.reduce(1), optimized=False)
            if begin == 0:
                plgpu.barrier_wait(refs.landed.at[raw_slot])
            for column in range(0, self.head_dim, width):
                part = pl.ds(begin, TILE), pl.ds(column, width)
                raw = plgpu.load(refs.raw.at[raw_slot].at[part], *LOAD_INDEX, layout=layout, optimized=False)
                values = raw.astype(jnp.float32) * lax.broadcast_in_dim(scale, raw.shape, [0])
                values = self.written(values.astype(jnp.bfloat16), item, block, begin)
                refs.ring.at[slot][part] = values
        plgpu.commit_smem()
        plgpu.barrier_arrive(refs.ready.at[slot])


@dataclass(frozen=True)
class _Refs:
    q: Ref
    out: Ref
    ins: dict[str, Ref]
    queries: Ref  # [2, TILE, C] of each attending warpgroup; its output leaves from there too
    staged: Ref  # [2, TILE, columns] plain rows of an output that ends inside a tile
    ring: Ref  # [units, keys, C]
    queries_ready: Ref
    ready: Ref  # [units] the unit can be read
    free: Ref  # [units] both attending warpgroups have read it
    turn: Ref
    landed: Ref
    raw: Ref = None  # [raw_units, keys, C] in 8 bits

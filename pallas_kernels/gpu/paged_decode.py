"""Attention of the sequences that decode (one token each), over pages, for sm_90a.

The products are taken with swapped operands, so that the few query rows that share a KV head are the N of the wgmma
(a multiple of 8) and the keys its M: S^T[keys, rows] = K Q^T, and O^T[values, rows] = V^T P^T.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.decode_merge import LOAD_INDEX, NEGATIVE, merge
from pallas_kernels.gpu.decode_schedule import Schedule, schedule
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages, RaggedBatch

LOG2_E = math.log2(math.e)
SCORES = plgpu.Layout.WGMMA  # [keys, rows] and [values, rows]
PER_KEY = plgpu.Layout.WGMMA.reduce(1)
PER_ROW = plgpu.Layout.WGMMA.reduce(0)
MOST_ROWS = 32  # query rows of one unit; more of one KV head are several units
SHARED_MEMORY = 227 * 1024  # of an SM, for CTAs
SHARED_MEMORY_OF_A_CTA = 1024  # that the runtime takes
SMS = 132  # of an H100 SXM or an H200
WGMMA_M = 64
QUERY_BUFFERS = 2  # the next piece's queries load while this one's are in use
MOST_STAGES = 6
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
PAGE_SIZES = (16, 32, 64, 128, 256)

Ref = Any  # Pallas has no public name for the type of a reference


@dataclass(frozen=True)
class DecodeBlocks:
    """How the kernel is cut. Found by a tuner, or derived by `derived_blocks`."""

    keys: int  # of one step: the M of the first product, 64 or 128
    stages: int  # steps whose keys and values may be on their way at once
    ctas: int  # of the whole chip, all of them resident


@dataclass(frozen=True)
class _Cut:
    """The static facts of one compiled kernel."""

    blocks: DecodeBlocks
    page_size: int
    kv_heads: int
    tiles: int  # units of one KV head
    rows: int  # query rows of a unit, a multiple of 8
    head_dim: int
    scale: float
    soft_cap: float | None
    dtype: Any  # of the queries and of both products' operands
    page_dtype: Any

    @property
    def units(self) -> int:
        """Units of one sequence."""
        return self.kv_heads * self.tiles

    @property
    def quantized(self) -> bool:
        return jnp.dtype(self.page_dtype).itemsize == 1

    @property
    def parts(self) -> tuple[slice, ...]:
        """The columns of a value, as the second products take them: whole multiples of 64, the M of a wgmma.

        A head size that is none has two parts that overlap."""
        if self.head_dim % WGMMA_M == 0:
            return (slice(0, self.head_dim),)
        return slice(0, WGMMA_M), slice(self.head_dim - WGMMA_M, self.head_dim)

    @property
    def values(self) -> int:
        """Output rows of all parts."""
        return sum(part.stop - part.start for part in self.parts)

    @property
    def copies(self) -> int:
        """Pages, or parts of one, that fill a block of keys."""
        return max(1, self.blocks.keys // self.page_size)

    @property
    def copied_keys(self) -> int:
        return min(self.blocks.keys, self.page_size)

    @property
    def shared_memory(self) -> int:
        """Bytes of one CTA, without barriers."""
        stage = self.blocks.keys * 2 * self.head_dim * jnp.dtype(self.page_dtype).itemsize
        other = QUERY_BUFFERS * self.rows * self.head_dim * 2 + self.rows * self.blocks.keys * 2
        if self.quantized:
            other += self.blocks.keys * self.head_dim * 2
        return self.blocks.stages * stage + other + self.reduction_scratch

    @property
    def reduction_scratch(self) -> int:
        """Bytes through which the warps of a warpgroup find the greatest score of a row."""
        return 128 * self.rows


def _tile(head_dim: int, dtype: Any) -> int:
    """Numbers in a line of a tile in shared memory: the widest swizzle that cuts a row of a head evenly.

    8-bit numbers stop at 64, since a tile of them is widened in registers as a whole."""
    size = jnp.dtype(dtype).itemsize
    return next(width for width in (128, 64, 32) if head_dim * size % width == 0 and width <= 64 * size) // size


def _transforms(head_dim: int, dtype: Any) -> tuple[plgpu.TilingTransform, plgpu.SwizzleTransform]:
    tile = _tile(head_dim, dtype)
    return plgpu.TilingTransform((8, tile)), plgpu.SwizzleTransform(tile * jnp.dtype(dtype).itemsize)


class _Global(NamedTuple):
    """References to device memory."""

    queries: Ref  # [S, units, N, C]
    pages: Ref  # [pages, L, page_size, 2K, C]
    scales: Ref | None  # [pages, L, page_size / keys, keys, 2K]
    table: Ref  # [S, P]
    layer: Ref  # [1]
    work: Schedule
    outputs: Ref  # [pieces, V, N]
    log_sums: Ref  # [pieces, N]


class _Shared(NamedTuple):
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


class _Piece(NamedTuple):
    """What a CTA takes of one unit."""

    number: Array
    sequence: Array
    unit: Array  # of the sequence
    block: Array  # the first block of keys
    steps: Array
    first_key: Array
    kv_len: Array


def _piece(cut: _Cut, work: Schedule, cta: Array, index: Array) -> _Piece:
    unit_number = work.first_unit[cta] + index
    sequence = lax.div(unit_number, cut.units)
    unit = unit_number - sequence * cut.units
    count, first_key, share = work.count[sequence], work.first_key[sequence], work.share[0]
    begin = work.start[sequence] + unit * count
    low = jnp.maximum(cta * share - begin, 0)
    high = jnp.minimum((cta + 1) * share - begin, count)
    block = lax.div(first_key, cut.blocks.keys) + low
    return _Piece(unit_number + cta, sequence, unit, block, high - low, first_key, work.kv_len[sequence])


def _fetch(cut: _Cut, device: _Global, shared: _Shared) -> None:
    """The fetching warpgroup: runs ahead of the other, through all pieces of the CTA, as far as the ring lets it."""
    cta = lax.axis_index("cta")
    pieces = device.work.pieces[cta]

    def piece(index: Array, done: Array) -> Array:
        here = _piece(cut, device.work, cta, index)
        slot = lax.rem(index, QUERY_BUFFERS)
        pl.when(index >= QUERY_BUFFERS)(lambda: plgpu.barrier_wait(shared.queries_free.at[slot]))
        source = device.queries.at[here.sequence, here.unit]
        plgpu.copy_gmem_to_smem(source, shared.queries.at[slot], shared.queries_ready.at[slot])

        def step(i: Array, pages: tuple[Array, ...]) -> tuple[Array, ...]:
            following = _page_numbers(cut, device, here, here.block + i + 1)
            _fetch_block(cut, device, shared, here, here.block + i, done + i, pages)
            return following

        lax.fori_loop(0, here.steps, step, _page_numbers(cut, device, here, here.block))
        return done + here.steps

    done = lax.fori_loop(0, pieces, piece, jnp.int32(0))
    # A barrier's phases count on: each arrival is waited for, also those that no further copy needs.
    for slot in range(QUERY_BUFFERS):
        pl.when(slot < pieces)(functools.partial(plgpu.barrier_wait, shared.queries_free.at[slot]))
    for slot in range(cut.blocks.stages):
        pl.when(slot < done)(functools.partial(plgpu.barrier_wait, shared.keys_free.at[slot]))
        pl.when(slot < done)(functools.partial(plgpu.barrier_wait, shared.values_free.at[slot]))


def _page_numbers(cut: _Cut, device: _Global, here: _Piece, block: Array) -> tuple[Array, ...]:
    """The pages of a block of keys. Beyond the sequence's ends its outermost pages stand in: the table's other
    entries may be anything."""
    first = lax.div(here.first_key, cut.page_size)
    last = lax.div(here.kv_len - 1, cut.page_size)
    column = lax.div(block * cut.blocks.keys, cut.page_size)
    columns = [jnp.clip(column + i, first, last) for i in range(cut.copies)]
    return tuple(device.table[here.sequence, column] for column in columns)


def _fetch_block(
    cut: _Cut, device: _Global, shared: _Shared, here: _Piece, block: Array, number: Array, pages: tuple[Array, ...]
) -> None:
    """Keys, values and scales of one block, into the ring's slot for the CTA's block of that number."""
    slot = lax.rem(number, cut.blocks.stages)
    again = number >= cut.blocks.stages
    layer = device.layer[0]
    begin = lax.rem(block * cut.blocks.keys, cut.page_size)
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


# The output's parts, [64 n, N] each; greatest score [N], base 2; sums [keys, N] that are still to be added up.
Carry = tuple[tuple[Array, ...], Array, Array]


def _attend(cut: _Cut, device: _Global, shared: _Shared) -> None:
    """The attending warpgroup."""
    cta = lax.axis_index("cta")

    def piece(index: Array, done: Array) -> Array:
        here = _piece(cut, device.work, cta, index)
        slot = lax.rem(index, QUERY_BUFFERS)
        plgpu.barrier_wait(shared.queries_ready.at[slot])
        queries = shared.queries.at[slot]

        def step(i: Array, state: tuple[Carry, _Scales]) -> tuple[Carry, _Scales]:
            carry, scales = state
            following = _next_scales(cut, device, here, here.block + i, scales)
            return _attend_block(cut, shared, here, queries, here.block + i, done + i, carry, scales), following

        state = _begin(cut), _first_scales(cut, device, here)
        (outputs, maximum, sums), _ = lax.fori_loop(0, here.steps, step, state)
        plgpu.barrier_arrive(shared.queries_free.at[slot])
        total = jnp.maximum(sums.sum(axis=0), 1e-30)
        for i, output in enumerate(outputs):
            device.outputs[here.number, pl.ds(i * WGMMA_M, output.shape[0])] = output / _spread(total, output)
        device.log_sums[here.number] = maximum + jnp.log2(total)
        return done + here.steps

    lax.fori_loop(0, device.work.pieces[cta], piece, jnp.int32(0))


# Of a block of 8-bit pages: the scales of keys and of values, [keys] each, and the page of the block after it. Loaded a
# block ahead, and its page two, so that no product waits for them. Empty for other pages.
_Scales = tuple[Array, ...]


def _first_scales(cut: _Cut, device: _Global, here: _Piece) -> _Scales:
    if device.scales is None:
        return ()
    (page,), (following,) = (_page_numbers(cut, device, here, here.block + i) for i in (0, 1))
    return *_load_scales(cut, device, here, here.block, page), following


def _next_scales(cut: _Cut, device: _Global, here: _Piece, block: Array, scales: _Scales) -> _Scales:
    """The scales of the block after this one."""
    if device.scales is None:
        return ()
    (following,) = _page_numbers(cut, device, here, block + 2)
    return *_load_scales(cut, device, here, block + 1, scales[-1]), following


def _load_scales(cut: _Cut, device: _Global, here: _Piece, block: Array, page: Array) -> tuple[Array, Array]:
    assert device.scales is not None
    of_block = device.scales.at[page, device.layer[0], lax.rem(block, cut.page_size // cut.blocks.keys)]
    row = 2 * lax.div(here.unit, cut.tiles)
    keys, values = (
        plgpu.load(of_block.at[:, row + kind], *LOAD_INDEX, layout=PER_KEY, optimized=False) for kind in (0, 1)
    )
    return keys, values


def _begin(cut: _Cut) -> Carry:
    shapes = [(part.stop - part.start, cut.rows) for part in cut.parts]
    outputs = tuple(plgpu.layout_cast(jnp.zeros(shape, jnp.float32), SCORES) for shape in shapes)
    maximum = plgpu.layout_cast(jnp.full((cut.rows,), NEGATIVE, jnp.float32), PER_ROW)
    sums = plgpu.layout_cast(jnp.zeros((cut.blocks.keys, cut.rows), jnp.float32), SCORES)
    return outputs, maximum, sums


def _attend_block(
    cut: _Cut, shared: _Shared, here: _Piece, queries: Ref, block: Array, number: Array, carry: Carry, scales: _Scales
) -> Carry:
    """One step of the online softmax (Milakov and Gimelshein, arXiv 1805.02867), in base 2."""
    outputs, maximum, sums = carry
    slot = lax.rem(number, cut.blocks.stages)
    plgpu.barrier_wait(shared.keys_ready.at[slot])
    scores = _product(_keys(cut, shared, slot), queries.transpose((1, 0)), (cut.blocks.keys, cut.rows))
    if scales:
        scores *= lax.broadcast_in_dim(scales[0], scores.shape, [0])
    plgpu.barrier_arrive(shared.keys_free.at[slot])

    if cut.soft_cap is None:
        scores *= cut.scale * LOG2_E
    else:
        scores = jnp.tanh(scores * (cut.scale / cut.soft_cap)) * (cut.soft_cap * LOG2_E)
    position = plgpu.broadcasted_iota(jnp.int32, scores.shape, 0, layout=SCORES) + block * cut.blocks.keys
    visible = (position >= here.first_key) & (position < here.kv_len)
    scores = jnp.where(visible, scores, NEGATIVE)
    new_maximum = jnp.maximum(maximum, scores.max(axis=0))
    weights = jnp.exp2(scores - _spread(new_maximum, scores))
    shrink = jnp.exp2(maximum - new_maximum)
    sums = sums * _spread(shrink, sums) + weights
    if scales:
        weights = jnp.where(visible, weights * lax.broadcast_in_dim(scales[1], weights.shape, [0]), 0.0)
    shared.weights.transpose((1, 0))[...] = plgpu.layout_cast(weights.astype(cut.dtype), plgpu.Layout.WGMMA_TRANSPOSED)
    plgpu.barrier_wait(shared.values_ready.at[slot])
    values = _values(cut, shared, here, slot, block)
    plgpu.commit_smem()
    weights_by_key = shared.weights.transpose((1, 0))
    outputs = tuple(
        output * _spread(shrink, output)
        + _product(values.at[:, part].transpose((1, 0)), weights_by_key, (output.shape[0], cut.rows))
        for output, part in zip(outputs, cut.parts, strict=True)
    )
    plgpu.barrier_arrive(shared.values_free.at[slot])
    return outputs, new_maximum, sums


def _keys(cut: _Cut, shared: _Shared, slot: Array) -> Ref:
    """[keys, C] in 16 bits."""
    if shared.wide is None:
        return shared.keys.at[slot]
    _widen(cut, shared.keys.at[slot], shared.wide)
    plgpu.commit_smem()
    return shared.wide


def _values(cut: _Cut, shared: _Shared, here: _Piece, slot: Array, block: Array) -> Ref:
    """[keys, C] in 16 bits, with nothing but zeros in the rows of keys that the token does not see.

    Those may hold an earlier owner's numbers, and their weight of zero does not undo a NaN."""
    values = shared.values.at[slot]
    if shared.wide is not None:
        _widen(cut, values, shared.wide)
        values = shared.wide
    begin = block * cut.blocks.keys

    @pl.when((begin < here.first_key) | (begin + cut.blocks.keys > here.kv_len))
    def _() -> None:
        for columns in _columns(cut, cut.dtype):
            tile = values.at[:, columns]
            position = plgpu.broadcasted_iota(jnp.int32, tile.shape, 0, layout=SCORES) + begin
            visible = (position >= here.first_key) & (position < here.kv_len)
            held = plgpu.load(tile, *LOAD_INDEX, layout=SCORES)
            tile[...] = jnp.where(visible, held, jnp.zeros_like(held))

    return values


def _widen(cut: _Cut, packed: Ref, wide: Ref) -> None:
    """8-bit numbers as 16-bit ones: float8 goes by way of float32, as the hardware has no direct conversion."""
    for columns in _columns(cut, cut.page_dtype):
        loaded = plgpu.load(packed.at[:, columns], *LOAD_INDEX, layout=plgpu.Layout.WGMMA_UPCAST_2X)
        numbers = loaded.astype(jnp.float32).astype(cut.dtype)
        wide.at[:, columns][...] = plgpu.layout_cast(numbers, plgpu.Layout.WGMMA)


def _columns(cut: _Cut, dtype: Any) -> list[slice]:
    """Head columns a tile at a time: what goes through registers whole would take too many of them."""
    width = max(_tile(cut.head_dim, dtype), _tile(cut.head_dim, cut.dtype))
    return [slice(column, column + width) for column in range(0, cut.head_dim, width)]


def _product(left: Ref, right: Ref, shape: tuple[int, int]) -> Array:
    """left @ right in float32. The accumulators are few, so starting from zero and adding costs next to nothing."""

    def accumulate(accumulator: Ref) -> Array:
        plgpu.wgmma(accumulator, left, right)
        return accumulator[...]

    sums = plgpu.ACC(shape, jnp.float32)  # pyright: ignore[reportPrivateImportUsage] (public; jax lists it elsewhere)
    return pl.run_scoped(accumulate, sums)


def _spread(per_row: Array, like: Array) -> Array:
    """[N] over [..., N]."""
    return lax.broadcast_in_dim(per_row, like.shape, [1])


def decode(
    q: Array,  # [S', H, C]: one token of each of the first S' sequences
    pool: Pool,
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None,  # [H]
    window: Array | int | None,
    *,
    blocks: DecodeBlocks | None = None,
) -> Array:  # [S', H, C]
    """Attention of the first num_decode sequences, whose new k and v are in the pool already; the other rows are zero.

    Raises ValueError for what `refusal` names.
    """
    cut = _cut(q, pool, options, blocks)
    work = schedule(
        batch.kv_lens[: q.shape[0]],
        batch.num_decode,
        window,
        chunked=options.chunked,
        units=cut.units,
        keys=cut.blocks.keys,
        ctas=cut.blocks.ctas,
    )
    outputs, log_sums = _attend_pieces(cut, _rows(cut, q), pool, layer, batch.page_table, work)
    spread_sinks = None if sinks is None else _rows(cut, sinks.astype(jnp.float32)[None, :, None] * LOG2_E)[0, ..., 0]
    merged = merge(outputs, log_sums, work, spread_sinks, units=cut.units, dtype=q.dtype)
    return _heads(cut, merged, q.shape)


def derived_blocks(q: Array, pool: Pool, options: AttentionOptions) -> DecodeBlocks:
    """How `decode` cuts its work when it is not told; shapes are enough."""
    return _cut(q, pool, options, None).blocks


def _cut(q: Array, pool: Pool, options: AttentionOptions, blocks: DecodeBlocks | None) -> _Cut:
    pages = pool.values if isinstance(pool, QuantizedPages) else pool
    _, heads, head_dim = q.shape
    _, _, page_size, kv_rows, _ = pages.shape
    reason = refusal(
        options,
        heads=heads,
        kv_heads=kv_rows // 2,
        head_dim=head_dim,
        page_size=page_size,
        page_dtype=pages.dtype,
    )
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        reason = f"the GPU decode kernel takes queries in bfloat16 or float16, not {q.dtype}"
    elif pages.dtype.itemsize == 2 and pages.dtype != q.dtype:
        reason = (
            f"the GPU decode kernel takes pages in 16 bits of the type of the queries, {q.dtype}, not {pages.dtype}"
        )
    if reason is not None:
        raise ValueError(reason)
    group = heads * 2 // kv_rows
    tiles = -(-group // MOST_ROWS)
    rows = -(-group // tiles // 8) * 8
    unsized = _Cut(
        DecodeBlocks(64, 1, 1),
        page_size,
        kv_rows // 2,
        tiles,
        rows,
        head_dim,
        options.scale,
        options.soft_cap,
        q.dtype,
        pages.dtype,
    )
    return dataclasses.replace(unsized, blocks=blocks or _derived_blocks(unsized))


def _derived_blocks(cut: _Cut) -> DecodeBlocks:
    """Two CTAs on an SM, so that one computes while the other waits, where both can have two stages on their way and
    ptxas is known to need no more than the 128 registers of a thread that each of them has then."""
    keys = 128 if cut.head_dim == 64 and not cut.quantized else 64
    few_registers = cut.head_dim * cut.rows <= 128 * 16 and not (cut.quantized and cut.head_dim > 128)
    for ctas_of_an_sm in (2, 1) if few_registers else (1,):
        room = SHARED_MEMORY // ctas_of_an_sm - SHARED_MEMORY_OF_A_CTA

        def needed(stages: int, ctas: int = ctas_of_an_sm) -> int:
            return dataclasses.replace(cut, blocks=DecodeBlocks(keys, stages, ctas * SMS)).shared_memory

        stages = (room - needed(0)) // (needed(1) - needed(0))
        if stages >= 2:
            return DecodeBlocks(keys, min(stages, MOST_STAGES), ctas_of_an_sm * SMS)
    raise ValueError(f"no two stages of {keys} keys of head size {cut.head_dim} fit in shared memory")


def _rows(cut: _Cut, per_head: Array) -> Array:
    """[S, H, C] as [S, units, N, C], with zeros for the rows that fill up a unit."""
    sequences, heads, width = per_head.shape
    group = heads // cut.kv_heads
    grouped = per_head.reshape(sequences, cut.kv_heads, group, width)
    padded = jnp.pad(grouped, ((0, 0), (0, 0), (0, cut.tiles * cut.rows - group), (0, 0)))
    return padded.reshape(sequences, cut.units, cut.rows, width)


def _heads(cut: _Cut, merged: Array, shape: tuple[int, ...]) -> Array:
    """[S, units, V, N] as [S, H, C]: the way back from `_rows`."""
    sequences, heads, head_dim = shape
    last = cut.parts[-1].stop - cut.parts[-1].start
    spare = cut.values - head_dim  # rows of the last part that the part before it has too
    merged = jnp.concatenate([merged[:, :, : cut.values - last], merged[:, :, cut.values - last + spare :]], axis=2)
    by_row = merged.swapaxes(2, 3).reshape(sequences, cut.kv_heads, cut.tiles * cut.rows, head_dim)
    return by_row[:, :, : heads // cut.kv_heads].reshape(shape)


def _attend_pieces(
    cut: _Cut, queries: Array, pool: Pool, layer: Array | int, table: Array, work: Schedule
) -> tuple[Array, Array]:
    """The output and the logarithm of the sum of each piece: [pieces, V, N], [pieces, N]."""
    pieces = queries.shape[0] * cut.units + cut.blocks.ctas
    layers = jnp.asarray(layer, jnp.int32).reshape(1)
    operands = [queries, table, layers, *dataclasses.astuple(work)]
    if isinstance(pool, QuantizedPages):
        pages, num_layers, _, kv_rows = pool.scales.shape
        by_block = pool.scales.reshape(pages, num_layers, -1, cut.blocks.keys, kv_rows)
        operands = [pool.values, by_block, *operands]
    else:
        operands = [pool, *operands]

    def decode_pieces(*references: Ref, **scratch: Ref) -> None:
        _decode_kernel(cut, references, scratch)

    kernel = plgpu.kernel(
        decode_pieces,
        out_type=[
            jax.ShapeDtypeStruct((pieces, cut.values, cut.rows), jnp.float32),
            jax.ShapeDtypeStruct((pieces, cut.rows), jnp.float32),
        ],
        grid=(cut.blocks.ctas,),
        grid_names=("cta",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types=_scratch(cut),
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=cut.reduction_scratch),
    )
    outputs, log_sums = kernel(*operands)
    return outputs, log_sums


def _scratch(cut: _Cut) -> dict[str, Any]:
    keys, stages, head_dim = cut.blocks.keys, cut.blocks.stages, cut.head_dim
    wide, packed = _transforms(head_dim, cut.dtype), _transforms(head_dim, cut.page_dtype)
    copies = cut.copies
    scratch: dict[str, Any] = {
        "queries": plgpu.SMEM((QUERY_BUFFERS, cut.rows, head_dim), cut.dtype, transforms=wide),
        "keys": plgpu.SMEM((stages, keys, head_dim), cut.page_dtype, transforms=packed),
        "values": plgpu.SMEM((stages, keys, head_dim), cut.page_dtype, transforms=packed),
        "weights": plgpu.SMEM((cut.rows, keys), cut.dtype, transforms=wide),
        "queries_ready": plgpu.Barrier(num_barriers=QUERY_BUFFERS),
        "queries_free": plgpu.Barrier(num_barriers=QUERY_BUFFERS),
        "keys_ready": plgpu.Barrier(num_arrivals=copies, num_barriers=stages),
        "keys_free": plgpu.Barrier(num_barriers=stages),
        "values_ready": plgpu.Barrier(num_arrivals=copies, num_barriers=stages),
        "values_free": plgpu.Barrier(num_barriers=stages),
    }
    if cut.quantized:
        scratch["wide"] = plgpu.SMEM((keys, head_dim), cut.dtype, transforms=wide)
    return scratch


def _decode_kernel(cut: _Cut, references: Sequence[Ref], scratch: dict[str, Ref]) -> None:
    pages, *rest = references
    scales = rest.pop(0) if cut.quantized else None
    queries, table, layer, *work, outputs, log_sums = rest
    device = _Global(queries, pages, scales, table, layer, Schedule(*work), outputs, log_sums)
    shared = _Shared(**scratch)
    warpgroup = lax.axis_index("warpgroup")
    pl.when(warpgroup == 0)(lambda: _attend(cut, device, shared))
    pl.when(warpgroup == 1)(lambda: _fetch(cut, device, shared))


def refusal(
    options: AttentionOptions, *, heads: int, kv_heads: int, head_dim: int, page_size: int, page_dtype: Any
) -> str | None:
    """Why this kernel can't serve attention of that shape, as a sentence; None where it can."""
    page_dtype = jnp.dtype(page_dtype)
    if options.value_dim is not None:
        return "the GPU decode kernel keeps K and V in rows of their own: value_dim is for the reference body"
    if page_dtype not in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.float8_e4m3fn):
        return f"the GPU decode kernel takes pages of bfloat16, float16, int8 or float8_e4m3fn, not {page_dtype}"
    if head_dim not in HEAD_DIMS:
        return f"the GPU decode kernel takes head sizes {HEAD_DIMS}, not {head_dim}"
    if page_size not in PAGE_SIZES:
        return f"the GPU decode kernel takes pages of {PAGE_SIZES} positions, not {page_size}"
    if kv_heads < 1 or heads % kv_heads:
        return f"{heads} query heads do not share {kv_heads} KV heads evenly"
    if page_dtype.itemsize == 1 and head_dim % 32:
        return f"the GPU decode kernel takes 8-bit pages of head sizes that are multiples of 32, not {head_dim}"
    if page_dtype.itemsize == 1 and page_size < 64:
        return f"the GPU decode kernel takes 8-bit pages of 64 positions or more, not {page_size}"
    return None

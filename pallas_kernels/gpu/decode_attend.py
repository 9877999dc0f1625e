"""The attending warpgroup of the decode kernel: products with swapped operands, the online softmax between them."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.decode_cut import QUERY_BUFFERS, DecodeCut
from pallas_kernels.gpu.decode_pieces import Global, Piece, Shared, page_numbers, piece_of
from pallas_kernels.gpu.hopper import WGMMA_M, Ref, accumulator, load
from pallas_kernels.gpu.page_tiles import tile_columns
from pallas_kernels.gpu.softmax import LEAST_SUM, LOWEST, logits

SCORES = plgpu.Layout.WGMMA  # [keys, rows] and [values, rows]
PER_KEY = plgpu.Layout.WGMMA.reduce(1)
PER_ROW = plgpu.Layout.WGMMA.reduce(0)

# The output's parts, [64 n, N] each; greatest score [N], base 2; sums [keys, N] that are still to be added up.
Carry = tuple[tuple[Array, ...], Array, Array]


def attend(cut: DecodeCut, device: Global, shared: Shared) -> None:
    """Walks over the pieces of a CTA, and writes the output and the logarithm of the sum of each."""
    cta = lax.axis_index("cta")

    def piece(index: Array, done: Array) -> Array:
        here = piece_of(cut, device.work, cta, index)
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
        total = jnp.maximum(sums.sum(axis=0), LEAST_SUM)
        for i, output in enumerate(outputs):
            device.outputs[here.number, pl.ds(i * WGMMA_M, output.shape[0])] = output / _spread(total, output)
        device.log_sums[here.number] = maximum + jnp.log2(total)
        return done + here.steps

    lax.fori_loop(0, device.work.pieces[cta], piece, jnp.int32(0))


# Of a block of 8-bit pages: the scales of keys and of values, [keys] each, and the page of the block after it. Loaded a
# block ahead, and its page two, so that no product waits for them. Empty for other pages.
_Scales = tuple[Array, ...]


def _first_scales(cut: DecodeCut, device: Global, here: Piece) -> _Scales:
    if device.scales is None:
        return ()
    (page,), (following,) = (page_numbers(cut, device, here, here.block + i) for i in (0, 1))
    return *_load_scales(cut, device, here, here.block, page), following


def _next_scales(cut: DecodeCut, device: Global, here: Piece, block: Array, scales: _Scales) -> _Scales:
    """The scales of the block after this one."""
    if device.scales is None:
        return ()
    (following,) = page_numbers(cut, device, here, block + 2)
    return *_load_scales(cut, device, here, block + 1, scales[-1]), following


def _load_scales(cut: DecodeCut, device: Global, here: Piece, block: Array, page: Array) -> tuple[Array, Array]:
    assert device.scales is not None
    of_block = device.scales.at[page, device.layer[0], lax.rem(block, cut.shape.page_size // cut.blocks.keys)]
    row = 2 * lax.div(here.unit, cut.tiles)
    keys, values = (load(of_block.at[:, row + kind], PER_KEY, optimized=False) for kind in (0, 1))
    return keys, values


def _begin(cut: DecodeCut) -> Carry:
    shapes = [(part.stop - part.start, cut.rows) for part in cut.parts]
    outputs = tuple(plgpu.layout_cast(jnp.zeros(shape, jnp.float32), SCORES) for shape in shapes)
    maximum = plgpu.layout_cast(jnp.full((cut.rows,), LOWEST, jnp.float32), PER_ROW)
    sums = plgpu.layout_cast(jnp.zeros((cut.blocks.keys, cut.rows), jnp.float32), SCORES)
    return outputs, maximum, sums


def _attend_block(
    cut: DecodeCut,
    shared: Shared,
    here: Piece,
    queries: Ref,
    block: Array,
    number: Array,
    carry: Carry,
    scales: _Scales,
) -> Carry:
    """One step of the online softmax (Milakov and Gimelshein, arXiv 1805.02867), in base 2."""
    outputs, maximum, sums = carry
    slot = lax.rem(number, cut.blocks.stages)
    plgpu.barrier_wait(shared.keys_ready.at[slot])
    scores = _product(_keys(cut, shared, slot), queries.transpose((1, 0)), (cut.blocks.keys, cut.rows))
    if scales:
        scores *= lax.broadcast_in_dim(scales[0], scores.shape, [0])
    plgpu.barrier_arrive(shared.keys_free.at[slot])

    scores, factor = logits(scores, cut.options)
    scores *= factor
    position = plgpu.broadcasted_iota(jnp.int32, scores.shape, 0, layout=SCORES) + block * cut.blocks.keys
    visible = (position >= here.first_key) & (position < here.kv_len)
    scores = jnp.where(visible, scores, LOWEST)
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


def _keys(cut: DecodeCut, shared: Shared, slot: Array) -> Ref:
    """[keys, C] in 16 bits."""
    if shared.wide is None:
        return shared.keys.at[slot]
    _widen(cut, shared.keys.at[slot], shared.wide)
    plgpu.commit_smem()
    return shared.wide


def _values(cut: DecodeCut, shared: Shared, here: Piece, slot: Array, block: Array) -> Ref:
    """[keys, C] in 16 bits, with nothing but zeros in the rows of keys that the token does not see.

    Those may hold an earlier owner's numbers, and their weight of zero does not undo a NaN."""
    values = shared.values.at[slot]
    if shared.wide is not None:
        _widen(cut, values, shared.wide)
        values = shared.wide
    begin = block * cut.blocks.keys

    @pl.when((begin < here.first_key) | (begin + cut.blocks.keys > here.kv_len))
    def _() -> None:
        for columns in _columns(cut):
            tile = values.at[:, columns]
            position = plgpu.broadcasted_iota(jnp.int32, tile.shape, 0, layout=SCORES) + begin
            visible = (position >= here.first_key) & (position < here.kv_len)
            held = load(tile, SCORES)
            tile[...] = jnp.where(visible, held, jnp.zeros_like(held))

    return values


def _widen(cut: DecodeCut, packed: Ref, wide: Ref) -> None:
    """8-bit numbers as 16-bit ones: float8 goes by way of float32, as the hardware has no direct conversion."""
    for columns in _columns(cut):
        loaded = load(packed.at[:, columns], plgpu.Layout.WGMMA_UPCAST_2X)
        numbers = loaded.astype(jnp.float32).astype(cut.dtype)
        wide.at[:, columns][...] = plgpu.layout_cast(numbers, plgpu.Layout.WGMMA)


def _columns(cut: DecodeCut) -> list[slice]:
    """Head columns a tile at a time: what goes through registers whole would take too many of them."""
    width = tile_columns(cut.shape.head_dim)
    return [slice(column, column + width) for column in range(0, cut.shape.head_dim, width)]


def _product(left: Ref, right: Ref, shape: tuple[int, int]) -> Array:
    """left @ right in float32. The accumulators are few, so starting from zero and adding costs next to nothing."""

    def multiply(sums: Ref) -> Array:
        plgpu.wgmma(sums, left, right)
        return sums[...]

    return pl.run_scoped(multiply, accumulator(*shape))


def _spread(per_row: Array, like: Array) -> Array:
    """[N] over [..., N]."""
    return lax.broadcast_in_dim(per_row, like.shape, [1])

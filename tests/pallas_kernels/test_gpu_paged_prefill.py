"""What of the Hopper prefill kernel is plain jnp or plain Python: its work list, its block sizes, its refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gpu.hopper import SHARED_MEMORY
from pallas_kernels.gpu.paged_prefill import PAGE_DTYPES, prefill, refusal
from pallas_kernels.gpu.paged_shape import HEAD_DIMS, PAGE_SIZES, PagedShape
from pallas_kernels.gpu.prefill_schedule import (
    BARRIERS,
    BEGIN,
    COUNT,
    END,
    LENGTH,
    ROW,
    ROWS,
    SCALED,
    SEQUENCE,
    BlockSizes,
    work_list,
)
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages, RaggedBatch

TOKENS, SEQUENCES = 600, 12
OPTIONS = AttentionOptions(scale=0.1)


def batch_of(prefixes: list[int], counts: list[int], num_decode: int) -> RaggedBatch:
    kv_lens, cu_q_lens = np.zeros(SEQUENCES, np.int32), np.zeros(SEQUENCES + 1, np.int32)
    kv_lens[: len(counts)] = np.add(prefixes, counts)
    cu_q_lens[1 : len(counts) + 1] = np.cumsum(counts)
    cu_q_lens[len(counts) + 1 :] = sum(counts)
    return RaggedBatch(
        page_table=jnp.zeros((SEQUENCES, 4), jnp.int32),
        kv_lens=jnp.asarray(kv_lens),
        cu_q_lens=jnp.asarray(cu_q_lens),
        num_decode=jnp.asarray(num_decode, jnp.int32),
        num_seqs=jnp.asarray(len(counts), jnp.int32),
        positions=jnp.zeros(TOKENS, jnp.int32),
        sequence_ids=jnp.zeros(TOKENS, jnp.int32),
    )


def random_batch(random: np.random.Generator) -> tuple[list[int], list[int], int]:
    sequences = int(random.integers(0, SEQUENCES + 1))
    num_decode = int(random.integers(0, sequences + 1))
    cuts = np.sort(random.integers(0, TOKENS - sequences + 1, sequences - num_decode))
    counts = [1] * num_decode + [1 + int(more) for more in np.diff(cuts, prepend=0)]
    return [int(prefix) for prefix in random.integers(0, 3000, sequences)], counts, num_decode


def expected_tiles(
    prefixes: list[int], counts: list[int], num_decode: int, heads: int, keys: int, window: int | None
) -> set[tuple[int, ...]]:
    """By walking over every row of every chunk."""
    tiles, token = set(), sum(counts[:num_decode])
    for sequence in range(num_decode, len(counts)):
        rows = [(prefixes[sequence] + i, head) for i in range(counts[sequence]) for head in range(heads)]
        for offset in range(0, len(rows), ROWS):
            own = rows[offset : offset + ROWS]
            seen = [max(0, position - (window or position + 1) + 1) for position, _ in own]
            position, head = own[0]
            fields = {
                SEQUENCE: sequence,
                ROW: token * heads + offset,
                COUNT: len(own),
                SCALED: position * heads + head,
                BEGIN: min(seen) // keys,
                END: own[-1][0] // keys + 1,
                LENGTH: prefixes[sequence] + counts[sequence],
            }
            tiles.add(tuple(fields[field] for field in sorted(fields)))
        token += counts[sequence]
    return tiles


@pytest.mark.parametrize("heads", [1, 3, 16])
@pytest.mark.parametrize("window", [None, 1, 200, 2**31 - 1])
def test_the_work_list_holds_every_row_of_every_chunk_once_and_no_other(heads: int, window: int | None) -> None:
    random = np.random.default_rng(heads)
    blocks = BlockSizes(heads=heads, keys=128, units=4)
    plan = jax.jit(lambda batch, window: work_list(batch, TOKENS, blocks, window))
    for _ in range(40):
        prefixes, counts, num_decode = random_batch(random)
        items, count = plan(batch_of(prefixes, counts, num_decode), window)
        live = np.asarray(items)[: int(count[0])]
        tiles = [tuple(int(x) for x in item[: LENGTH + 1]) for item in live]
        expected = expected_tiles(prefixes, counts, num_decode, heads, 128, window)
        assert len(tiles) == len(expected)
        assert set(tiles) == expected
        costs = live[:, END] - live[:, BEGIN]
        assert np.all(np.diff(costs) <= 0)
        assert np.all(costs > 0)


def test_a_batch_of_only_decode_has_no_work() -> None:
    _, count = work_list(batch_of([5, 9], [1, 1], 2), TOKENS, BlockSizes(heads=1, keys=64, units=2), None)
    assert int(count[0]) == 0


def pool_of(kv_heads: int, head_dim: int, dtype: np.dtype, page_size: int = 64) -> Pool:
    values = jax.ShapeDtypeStruct((8, 1, page_size, 2 * kv_heads, head_dim), dtype)
    if dtype.itemsize > 1:
        return values  # type: ignore[return-value]  # only shapes are read
    return QuantizedPages(values, jax.ShapeDtypeStruct(values.shape[:-1], np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", PAGE_DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_derived_block_sizes_fit_shared_memory_and_registers(head_dim: int, dtype: np.dtype) -> None:
    blocks = BlockSizes.derived((2048, 32, head_dim), pool_of(8, head_dim, dtype), 16)
    staged = ROWS * (head_dim if head_dim <= 128 else head_dim // 2) * 2
    ring = blocks.units * blocks.keys * head_dim * 2
    raw = blocks.raw_units * blocks.keys * head_dim
    assert ROWS * head_dim * 2 + staged + ring + raw + BARRIERS <= SHARED_MEMORY
    assert blocks.units >= 3
    assert 2 * blocks.attending_registers + blocks.fetching_registers <= 504


def test_heads_share_tiles_where_chunks_are_short_or_there_is_one_kv_head() -> None:
    bfloat16 = jnp.dtype(jnp.bfloat16)
    assert BlockSizes.derived((4096, 32, 128), pool_of(8, 128, bfloat16), 16).heads == 1
    assert BlockSizes.derived((320, 32, 128), pool_of(8, 128, bfloat16), 64).heads == 4
    assert BlockSizes.derived((4096, 8, 128), pool_of(1, 128, bfloat16), 16).heads == 8


SHAPE = PagedShape(heads=32, kv_heads=8, head_dim=128, page_size=64, page_dtype=jnp.dtype(jnp.bfloat16))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_shapes_of_real_models_are_served(head_dim: int, page_size: int) -> None:
    assert refusal(OPTIONS, replace(SHAPE, head_dim=head_dim, page_size=page_size)) is None


@pytest.mark.parametrize(
    ("options", "shape", "named"),
    [
        (replace(OPTIONS, chunked=True), {}, "chunked"),
        (replace(OPTIONS, value_dim=512), {}, "value_dim"),
        (replace(OPTIONS, scale=-1.0), {}, "scale above 0"),
        (OPTIONS, {"head_dim": 72}, "72"),
        (OPTIONS, {"page_size": 48}, "48"),
        (OPTIONS, {"page_dtype": jnp.dtype(jnp.float32)}, "float32"),
        (OPTIONS, {"heads": 20}, "20 query heads"),
        (OPTIONS, {"page_dtype": jnp.dtype(jnp.int8), "page_size": 32}, "64 positions"),
    ],
)
def test_what_is_not_served_is_refused_by_name(options: AttentionOptions, shape: dict, named: str) -> None:
    reason = refusal(options, replace(SHAPE, **shape))
    assert reason is not None
    assert named in reason


def test_a_call_that_would_be_refused_raises() -> None:
    q, pool = jnp.zeros((8, 4, 72), jnp.bfloat16), jnp.zeros((2, 1, 64, 4, 72), jnp.bfloat16)
    with pytest.raises(ValueError, match="72"):
        prefill(q, pool, 0, batch_of([0], [8], 0), OPTIONS)


def test_queries_in_float32_are_refused() -> None:
    q, pool = jnp.zeros((8, 4, 64)), jnp.zeros((2, 1, 64, 4, 64), jnp.bfloat16)
    with pytest.raises(ValueError, match="queries in bfloat16"):
        prefill(q, pool, 0, batch_of([0], [8], 0), OPTIONS)


@pytest.mark.parametrize(("blocks", "named"), [({"heads": 3}, "heads is 3"), ({"keys": 96}, "keys is 96")])
def test_block_sizes_that_cannot_work_are_refused_by_name(blocks: dict, named: str) -> None:
    q, pool = jnp.zeros((8, 4, 64), jnp.bfloat16), jnp.zeros((2, 1, 64, 4, 64), jnp.bfloat16)
    with pytest.raises(ValueError, match=named):
        prefill(
            q, pool, 0, batch_of([0], [8], 0), OPTIONS, blocks=replace(BlockSizes(heads=1, keys=64, units=4), **blocks)
        )

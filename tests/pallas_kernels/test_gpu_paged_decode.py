"""What surrounds the GPU decode kernel and needs no GPU: the schedule, the order of query rows, the refusals."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gpu import paged_attention as gpu
from pallas_kernels.gpu import paged_decode
from pallas_kernels.gpu.decode_cut import MOST_ROWS, DecodeCut
from pallas_kernels.gpu.decode_schedule import Schedule, schedule
from pallas_kernels.gpu.hopper import STREAMING_MULTIPROCESSORS
from pallas_kernels.gpu.paged_shape import HEAD_DIMS
from pallas_kernels.ragged import AttentionOptions, PoolSpec, QuantizedPages
from pallas_kernels.reference import paged_attention as reference
from tests.pallas_kernels.ragged_sequences import PagedSequences

KEYS = 64


def first_visible(length: int, window: int | None, chunked: bool) -> int:
    if window is None:
        return 0
    return (length - 1) // window * window if chunked else max(length - window, 0)


def pieces_of(work: Schedule, units: int, ctas: int) -> list[tuple[int, int, int, range]]:
    """(number, CTA, unit, its blocks) of every piece, by the rules that the kernel follows."""
    start, count, share = np.asarray(work.start), np.asarray(work.count), int(work.share[0])
    first_unit, taken = np.asarray(work.first_unit), np.asarray(work.pieces)
    pieces = []
    for cta in range(ctas):
        for index in range(int(taken[cta])):
            unit = int(first_unit[cta]) + index
            sequence = unit // units
            begin = start[sequence] + unit % units * count[sequence]
            low, high = max(cta * share - begin, 0), min((cta + 1) * share - begin, count[sequence])
            pieces.append((unit + cta, cta, unit, range(int(low), int(high))))
    return pieces


@dataclasses.dataclass(frozen=True)
class Deal:
    """One compiled schedule for eight sequences, and random batches for it."""

    units: int
    ctas: int
    windowed: bool
    chunked: bool = False

    def random_batches(self, count: int) -> Iterator[tuple[Schedule, np.ndarray, int, int | None]]:
        """Schedule, lengths, how many sequences are live, window."""
        deal = jax.jit(schedule, static_argnames=("chunked", "units", "keys", "ctas"))
        random = np.random.default_rng(self.units * 1000 + self.ctas)
        for _ in range(count):
            lengths = random.integers(1, int(random.choice([60, 600, 9000])), 8).astype(np.int32)
            live = int(random.integers(0, 9))
            window = int(random.choice([1, 50, 64, 300, 2**31 - 1])) if self.windowed else None
            traced = None if window is None else np.int32(window)
            sizes = {"chunked": self.chunked, "units": self.units, "keys": KEYS, "ctas": self.ctas}
            yield deal(lengths, np.int32(live), traced, **sizes), lengths, live, window


DEALS = [Deal(1, 1, False), Deal(3, 7, False), Deal(2, 40, True), Deal(4, 5, True, True)]


@pytest.mark.parametrize("deal", DEALS, ids=str)
def test_every_block_that_a_token_sees_is_dealt_once_and_evenly(deal: Deal) -> None:
    for work, lengths, live, window in deal.random_batches(40):
        pieces = pieces_of(work, deal.units, deal.ctas)
        numbers = [number for number, *_ in pieces]
        assert len(set(numbers)) == len(numbers)
        assert all(number < len(lengths) * deal.units + deal.ctas for number in numbers)
        dealt: dict[int, list[int]] = {}
        for _, _, unit, blocks in pieces:
            dealt.setdefault(unit, []).extend(blocks)
        for sequence in range(live):
            first = first_visible(int(lengths[sequence]), window, deal.chunked)
            blocks = (int(lengths[sequence]) - 1) // KEYS - first // KEYS + 1
            assert int(work.first_key[sequence]) == first
            for unit in range(sequence * deal.units, (sequence + 1) * deal.units):
                assert dealt.pop(unit) == list(range(blocks))
        assert not dealt
        taken = [sum(len(blocks) for _, cta, _, blocks in pieces if cta == which) for which in range(deal.ctas)]
        assert max(taken) <= -(-sum(taken) // deal.ctas)


@pytest.mark.parametrize("deal", DEALS, ids=str)
def test_the_pieces_of_a_unit_have_consecutive_numbers(deal: Deal) -> None:
    for work, *_ in deal.random_batches(20):
        by_unit: dict[int, list[int]] = {}
        for number, _, unit, _ in pieces_of(work, deal.units, deal.ctas):
            by_unit.setdefault(unit, []).append(number)
        start, count, share = np.asarray(work.start), np.asarray(work.count), int(work.share[0])
        for unit, numbers in by_unit.items():
            begin = int(start[unit // deal.units]) + unit % deal.units * int(count[unit // deal.units])
            first_cta = begin // share  # as the merging kernel finds them
            last_cta = (begin + int(count[unit // deal.units]) - 1) // share
            assert numbers == list(range(unit + first_cta, unit + last_cta + 1))


def test_one_long_sequence_occupies_every_cta() -> None:
    work = schedule(
        jnp.asarray([100_000, 0], jnp.int32), jnp.int32(1), None, chunked=False, units=1, keys=KEYS, ctas=264
    )
    assert int((work.pieces > 0).sum()) >= 260


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 128), (12, 4, 80), (32, 2, 96), (71, 1, 80)])
def test_query_rows_go_into_units_and_come_back(heads: int, kv_heads: int, head_dim: int) -> None:
    q = jnp.asarray(np.random.default_rng(0).normal(size=(3, heads, head_dim)), jnp.float16)
    pool = jax.ShapeDtypeStruct((4, 1, 64, 2 * kv_heads, head_dim), jnp.float16)
    cut = DecodeCut.of(q.shape, q.dtype, pool, AttentionOptions(scale=1.0))  # type: ignore[arg-type]
    rows = cut.rows_of(q)
    assert rows.shape == (3, cut.units, cut.rows, head_dim)
    assert cut.rows % 8 == 0
    assert cut.rows <= MOST_ROWS
    by_value = rows.swapaxes(2, 3)
    merged = jnp.concatenate([by_value[:, :, part] for part in cut.parts], axis=2)
    np.testing.assert_array_equal(cut.heads_of(merged), q)


@pytest.mark.parametrize("page_dtype", ["bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("group", [1, 8, 16])
def test_derived_blocks_fit_on_an_sm(head_dim: int, page_dtype: str, group: int) -> None:
    if page_dtype != "bfloat16" and head_dim == 80:
        return  # refused
    q = jax.ShapeDtypeStruct((4, 4 * group, head_dim), jnp.bfloat16)
    pool = gpu.pool_shape(PoolSpec(8, 1, 64, 4, head_dim, jnp.dtype(page_dtype)))
    cut = DecodeCut.of(q.shape, q.dtype, pool, AttentionOptions(scale=1.0))
    ctas_of_an_sm = cut.blocks.ctas // STREAMING_MULTIPROCESSORS
    assert cut.blocks.stages >= 2
    assert ctas_of_an_sm * (cut.shared_memory + 2048) <= 228 * 1024


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 72}, "head sizes"),
        ({"page_size": 48}, "48"),
        ({"dtype": jnp.float32}, "float32"),
        ({"dtype": jnp.int8, "head_dim": 80}, "80"),
        ({"dtype": jnp.int8, "page_size": 32}, "64 positions"),
        ({"kv_heads": 3}, "share 3"),
        ({"latent": True, "kv_heads": 1}, "latent"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_with_the_reason(change: dict, said: str) -> None:
    spec = PoolSpec(pages=8, layers=1, page_size=64, kv_heads=4, head_dim=128, dtype=jnp.bfloat16)
    assert gpu.refusal(AttentionOptions(scale=1.0), 32, spec) is None
    reason = gpu.refusal(AttentionOptions(scale=1.0), 32, dataclasses.replace(spec, **change))
    assert reason is not None
    assert said in reason


def test_queries_in_float32_are_refused() -> None:
    pool = jax.ShapeDtypeStruct((4, 1, 64, 2, 128), jnp.bfloat16)
    with pytest.raises(ValueError, match="float32"):
        paged_decode.derived_blocks(
            jax.ShapeDtypeStruct((1, 8, 128), jnp.float32),  # type: ignore[arg-type]
            pool,  # type: ignore[arg-type]
            AttentionOptions(scale=1.0),
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("tokens", [1, 12])
def test_new_rows_are_written_as_the_reference_writes_them(dtype: str, tokens: int) -> None:
    sequences = PagedSequences(np.random.default_rng(1), num_pages=12, page_size=4)
    steps = [(sequences.begin(8), 1), (sequences.begin(12), 7)]
    batch = sequences.batch(steps[: 1 if tokens == 1 else 2], num_decode=1, tokens=tokens, rows=3, width=4)
    spec = PoolSpec(pages=12, layers=2, page_size=4, kv_heads=2, head_dim=8, dtype=jnp.dtype(dtype))
    pool = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), gpu.pool_shape(spec))
    k, v = jnp.asarray(np.random.default_rng(0).normal(size=(2, tokens, 2, 8)), jnp.bfloat16)
    expected = jax.jit(reference.write_pages)(pool, k, v, 1, batch)
    written = jax.jit(gpu.write_pages)(pool, k, v, 1, batch)
    assert isinstance(written, QuantizedPages) == (dtype != "bfloat16")
    for ours, theirs in zip(jax.tree.leaves(written), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))

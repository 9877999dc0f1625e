"""The TPU attention against its definition, in Pallas's interpreters: random ragged batches in poisoned pools."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, QuantizedPages, RaggedBatch
from pallas_kernels.tpu.blocks import Blocks, default_blocks
from pallas_kernels.tpu.paged_attention import paged_attention, pool_shape, refusal
from pallas_kernels.tpu.pool_layout import LANES, RowLayout, rows_per_tile
from tests.pallas_kernels import attention_trial
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.kept_pages import LAYER, KeptPages
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

TOKENS, ROWS, LONGEST = 48, 12, 150
RANDOM_BATCHES = 4  # of each setting; some hundreds make a long run
SMALL_BLOCKS = Blocks(
    decode_sequences=8,
    decode_pages=2,
    decode_buffers=3,
    prefill_queries=16,
    prefill_pages=2,
    prefill_buffers=2,
    write_buffers=2,
)


@dataclass(frozen=True)
class Setting(attention_trial.Setting):
    head_dim: int = 128
    tokens: int = TOKENS
    rows: int = ROWS
    blocks: Blocks | None = SMALL_BLOCKS
    interpret: Any = True

    @property
    def options(self) -> AttentionOptions:
        return AttentionOptions(1.2 * self.head_dim**-0.5, self.soft_cap, self.chunked, self.value_dim)


TWO_CORES = Blocks(8, 3, 2, 16, 1, 3, 4, cores=2)
SETTINGS = {
    "a window": Setting(window=37),
    "heads of 64 in bfloat16, pages of 48": Setting(head_dim=64, kv_heads=1, group=8, page_size=48, dtype="bfloat16"),
    "heads of 80 in threes, soft cap, sinks": Setting(head_dim=80, kv_heads=3, group=3, soft_cap=2.0, sinks=True),
    "one query head a KV head of 96, chunks of 37, two cores": Setting(
        head_dim=96, kv_heads=5, group=1, window=37, chunked=True, page_size=8, blocks=TWO_CORES
    ),
    "sixteen query heads of 192, own blocks": Setting(head_dim=192, kv_heads=1, group=16, blocks=None, sinks=True),
    "int8 pages, a window": Setting(pages="int8", page_size=32, window=50, dtype="bfloat16"),
    "float8 pages, heads of 256": Setting(pages="float8_e4m3fn", page_size=32, head_dim=256, kv_heads=1, group=4),
    "latent pages": Setting(head_dim=96, kv_heads=1, group=12, value_dim=64, window=2**31 - 1),
    "latent pages of int8": Setting(head_dim=160, kv_heads=1, group=4, value_dim=128, pages="int8", page_size=32),
}


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS.keys(), scope="module")
def trial(request: pytest.FixtureRequest) -> "Trial":
    return Trial(request.param)


class Trial:
    """One compiled shape, and a run of batches through it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.random = np.random.default_rng(7)
        self.heads = setting.kv_heads * setting.group
        self.width = -(-LONGEST // setting.page_size)
        self.num_pages = setting.rows * self.width + 3
        self.spec = setting.pool(self.num_pages)
        self.layout = RowLayout(setting.kv_heads, setting.head_dim, setting.value_dim)
        self.sinks = self.random.normal(size=self.heads).astype(np.float32) if setting.sinks else None
        assert refusal(setting.options, self.heads, self.spec) is None
        self.call = jax.jit(self.attend)

    def attend(self, q: Any, new: Any, pool: Pool, batch: RaggedBatch, window: Any) -> tuple[jax.Array, Pool]:
        k, v = (new, None) if self.spec.latent else (new[:, 0::2], new[:, 1::2])
        setting = self.setting
        fixed = {"blocks": setting.blocks, "interpret": setting.interpret}
        return paged_attention(q, k, v, pool, LAYER, batch, setting.options, self.sinks, window, **fixed)

    def draw(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape).astype(jnp.dtype(self.setting.dtype))

    def draw_rows(self, num: int) -> np.ndarray:
        return self.draw(num, 1 if self.spec.latent else 2 * self.setting.kv_heads, self.setting.head_dim)

    def run(
        self, prefixes: list[int], counts: list[int], num_decode: int, *, shared: int = 0, broken: int | None = None
    ) -> None:
        """Sequences of `prefixes` tokens go on by `counts`; asserts the outputs and every number of the pool.

        The first `shared` tokens, whole pages of them, are the same pages in all sequences. The `broken`-th sequence
        has NaN for its new keys and values, and its own outputs are let be.
        """
        setting = self.setting
        pages, pool = PagedSequences(self.random, self.num_pages, setting.page_size), KeptPages(self.spec)
        first = pages.begin(shared)
        beginning = self.draw_rows(shared)
        self.write(pool, pages, first, beginning, range(shared))
        sequences, histories = [], []
        for prefix, count in zip(prefixes, counts, strict=True):
            sequence = pages.begin(prefix + count - shared)
            sequence.pages[:0] = first.pages
            rows = np.concatenate([beginning, self.draw_rows(prefix + count - shared)])
            self.write(pool, pages, sequence, rows, range(shared, prefix))
            sequence.length = prefix
            if broken == len(sequences):
                rows[prefix:] = np.nan
            sequences.append(sequence)
            histories.append(rows)
        steps = list(zip(sequences, counts, strict=True))
        batch = pages.batch(steps, num_decode=num_decode, tokens=setting.tokens, rows=setting.rows, width=self.width)
        q, new = self.draw(setting.tokens, self.heads, setting.head_dim), self.draw_rows(setting.tokens)
        before, at = self.flat(pool), 0
        expected = np.zeros((*q.shape[:2], setting.value_dim or setting.head_dim))
        ignored = np.zeros(setting.tokens, bool)
        for number, (rows, (sequence, count)) in enumerate(zip(histories, steps, strict=True)):
            new[at : at + count] = rows[sequence.length :]
            self.write(pool, pages, sequence, rows, range(sequence.length, sequence.length + count))
            kept = pool.read([pages.slot(sequence, position) for position in range(len(rows))])
            ignored[at : at + count] = number == broken
            for token in range(0 if number == broken else count):
                expected[at + token] = self.oracle(q[at + token], kept[: sequence.length + token + 1])
            at += count

        out, after = self.call(q, new, before, batch, setting.window)
        self.assert_pool(after, pool)
        tolerance = 2e-5 if setting.dtype == "float32" else 4e-2
        out = np.where(ignored[:, None, None], expected, np.asarray(out, np.float64))
        np.testing.assert_allclose(out, expected, atol=tolerance, rtol=tolerance)

    def oracle(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        keys, values = (rows, None) if self.spec.latent else (rows[:, 0::2], rows[:, 1::2])
        return attend_one(query, keys, values, self.setting.options, self.sinks, self.setting.window)

    def write(
        self, pool: KeptPages, pages: PagedSequences, sequence: PagedSequence, rows: np.ndarray, positions: range
    ) -> None:
        if positions:
            slots = [pages.slot(sequence, position) for position in positions]
            pool.write(slots, rows[positions.start : positions.stop])

    def flat(self, pool: KeptPages) -> Pool:
        """The pool as a TPU keeps it."""
        values = pool.values.reshape(*pool.values.shape[:3], -1)
        values = np.pad(values, ((0, 0), (0, 0), (0, 0), (0, self.layout.width - values.shape[3])))
        if not pool.quantized:
            return jnp.asarray(values)
        scales = pool.scales.transpose(0, 1, 3, 2)
        spare = -scales.shape[3] % LANES
        scales = np.pad(scales, ((0, 0), (0, 0), (0, 0), (0, spare)), constant_values=np.nan)
        return QuantizedPages(jnp.asarray(values), jnp.asarray(scales))

    def assert_pool(self, actual: Pool, expected: KeptPages) -> None:
        values = actual.values if isinstance(actual, QuantizedPages) else actual
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), actual) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), pool_shape(self.spec)
        )
        right = expected.values.reshape(*expected.values.shape[:3], -1)
        values, padding = np.split(np.asarray(values, np.float32), [right.shape[3]], axis=3)
        # XLA multiplies by the reciprocal of a scale: a number halfway between two integers may go to either.
        halfway = 1 if right.dtype == np.int8 else 0
        np.testing.assert_allclose(values, right.astype(np.float32), rtol=0, atol=halfway)
        assert not padding.any()
        if isinstance(actual, QuantizedPages):
            scales = np.asarray(actual.scales)[..., : self.setting.page_size].transpose(0, 1, 3, 2)
            np.testing.assert_allclose(scales, expected.scales, rtol=1e-6)

    def random_batch(self) -> tuple[list[int], list[int], int]:
        """Prefixes, counts and how many decode: up to ROWS sequences in the token bucket, of lengths 1 to LONGEST."""
        rows = int(self.random.integers(1, self.setting.rows + 1))
        num_decode = int(self.random.integers(0, rows + 1))
        counts, room = [1] * num_decode, self.setting.tokens - rows
        for _ in range(rows - num_decode):
            more = int(self.random.integers(0, room + 1))
            counts.append(1 + more)
            room -= more
        prefixes = [int(self.random.integers(0, LONGEST - count + 1)) for count in counts]
        return prefixes, counts, num_decode


def test_random_mixes_of_decode_prefill_and_padding_attend_by_the_definition(trial: Trial) -> None:
    for _ in range(RANDOM_BATCHES):
        trial.run(*trial.random_batch())


def test_an_empty_batch_writes_nothing(trial: Trial) -> None:
    trial.run([], [], 0)


def test_first_tokens_and_the_longest_sequence_fill_what_they_may(trial: Trial) -> None:
    trial.run([0, LONGEST - 1, 0, LONGEST - 30], [1, 1, 1, 30], 2)


def test_a_bucket_full_of_prefill_from_an_empty_pool(trial: Trial) -> None:
    trial.run([0, 0], [TOKENS - 1, 1], 0)


def test_every_row_decodes(trial: Trial) -> None:
    trial.run([0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 95, LONGEST - 1], [1] * ROWS, ROWS)


def test_pages_of_a_shared_prefix_serve_all_that_share_it(trial: Trial) -> None:
    shared = 96  # whole pages of every setting
    trial.run([shared, shared + 5, shared + 16, shared], [1, 1, 1, 20], 3, shared=shared)


@pytest.mark.parametrize("broken", [1, 3])
@pytest.mark.parametrize("trial", [setting for setting in SETTINGS.values() if not setting.pages], indirect=True)
def test_a_sequence_of_nan_breaks_no_other(trial: Trial, broken: int) -> None:
    trial.run([40, 39, 17, 33, 35], [1, 1, 9, 11, 13], 2, broken=broken)


def test_chunks_begin_and_end_at_every_row_of_a_page(trial: Trial) -> None:
    for offset in range(0, trial.setting.page_size, 1 if trial.setting == SETTINGS["a window"] else 11):
        trial.run([offset, 7], [19 + offset % 5, 10], 0)


@pytest.mark.parametrize("trial", [setting for setting in SETTINGS.values() if setting.window == 37], indirect=True)
def test_pages_before_the_window_are_not_read(trial: Trial) -> None:
    """Their table entries point at a page of NaN, which a mask alone would not keep out of the output."""
    setting, length, last = trial.setting, 130, 20
    rows = trial.draw_rows(length)
    pages, pool = PagedSequences(trial.random, trial.num_pages, setting.page_size), KeptPages(trial.spec)
    (poisoned,) = pages.begin(1).pages
    steps = [(pages.begin(length), count) for count in (1, last)]
    for sequence, count in steps:
        sequence.length = length - count
        trial.write(pool, pages, sequence, rows, range(sequence.length))
        first = sequence.length // 37 * 37 if setting.chunked else sequence.length - 36
        unseen = first // setting.page_size
        sequence.pages[:unseen] = [poisoned] * unseen
    batch = pages.batch(steps, num_decode=1, tokens=TOKENS, rows=ROWS, width=trial.width)
    q, new = trial.draw(TOKENS, trial.heads, setting.head_dim), trial.draw_rows(TOKENS)
    new[:1], new[1 : 1 + last] = rows[-1:], rows[-last:]
    out, _ = trial.call(q, new, trial.flat(pool), batch, setting.window)
    for token, position in enumerate([length - 1, *range(length - last, length)]):
        np.testing.assert_allclose(out[token], trial.oracle(q[token], rows[: position + 1]), atol=2e-5, rtol=2e-5)


RACE_SETTINGS = {
    "bfloat16": Setting(dtype="bfloat16", window=37, blocks=Blocks(8, 2, 2, 16, 2, 2, 2)),
    "int8 pages": Setting(kv_heads=1, pages="int8", page_size=32, blocks=Blocks(8, 1, 3, 16, 1, 3, 2)),
}


@pytest.mark.parametrize("setting", RACE_SETTINGS.values(), ids=RACE_SETTINGS.keys())
def test_no_copy_races_with_a_use(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    interpret = pltpu.InterpretParams(detect_races=True)
    size = {"tokens": 32, "rows": 5, "interpret": interpret}
    Trial(Setting(**{**vars(setting), **size})).run([40, 33, 70, 17, 0], [1, 1, 1, 18, 7], 3)
    assert "RACE DETECTED" not in capsys.readouterr().out


def test_the_interpreter_would_have_told_of_a_race(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: Any, out: Any, buffer: Any, arrived: Any) -> None:
        copy = pltpu.make_async_copy(x, buffer, arrived)
        copy.start()
        out[...] = buffer[...]
        copy.wait()

    read_too_early: Callable[..., jax.Array] = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        interpret=pltpu.InterpretParams(detect_races=True),
    )
    jax.block_until_ready(read_too_early(jnp.ones((8, 128))))
    assert "RACE DETECTED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "query_heads", "value_dim", "reason"),
    [
        (PoolSpec(9, 2, 16, 1, 128, "int8"), 8, None, "page_size 16"),
        (PoolSpec(9, 2, 24, 1, 128, "bfloat16"), 8, None, "page_size 24"),
        (PoolSpec(9, 2, 16, 1, 128, "float16"), 8, None, "not in float16"),
        (PoolSpec(9, 2, 16, 3, 128, "bfloat16"), 8, None, "3 KV heads"),
        (PoolSpec(9, 2, 16, 1, 128, "bfloat16"), 8, 64, "latent"),
        (PoolSpec(9, 2, 16, 1, 128, "bfloat16", latent=True), 8, 256, "value_dim 256"),
        (PoolSpec(9, 2, 256, 32, 96, "bfloat16"), 32, None, "page_size must be at most 224"),
        (PoolSpec(9, 2, 256, 32, 80, "float32"), 32, None, "page_size must be at most 200"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    spec: PoolSpec, query_heads: int, value_dim: int | None, reason: str
) -> None:
    assert reason in (refusal(AttentionOptions(1.0, value_dim=value_dim), query_heads, spec) or "")


def test_a_pool_of_another_layout_is_refused() -> None:
    trial = Trial(Setting())
    pool = jnp.zeros((trial.num_pages, attention_trial.LAYERS, 16, 4, 128))
    batch = PagedSequences(trial.random, 9, 16).batch([], num_decode=0, tokens=TOKENS, rows=ROWS, width=3)
    with pytest.raises(ValueError, match="512"):
        trial.call(trial.draw(TOKENS, 4, 128), trial.draw_rows(TOKENS), pool, batch, None)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize(("kv_heads", "query_heads"), [(1, 1), (1, 16), (8, 32), (8, 64), (16, 16)])
def test_default_blocks_fit_and_are_whole(kv_heads: int, query_heads: int, head_dim: int) -> None:
    layout = RowLayout(kv_heads, head_dim)
    for page_size, dtype in ((16, "bfloat16"), (256, "bfloat16"), (64, "int8")):
        size = jnp.dtype(dtype).itemsize
        blocks = default_blocks(layout, query_heads, page_size, size, table_width=512, tokens=2048, sequences=256)
        row = layout.width * size
        assert blocks.decode_buffers * blocks.decode_pages * page_size * row <= 12 << 20
        assert blocks.prefill_buffers * blocks.prefill_pages * page_size * row <= 12 << 20
        assert blocks.prefill_queries % 16 == 0
        assert page_size % rows_per_tile(dtype) == 0

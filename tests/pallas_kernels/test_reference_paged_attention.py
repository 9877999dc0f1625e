"""The reference attention against its definition, over random ragged batches in poisoned pools."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ragged import AttentionOptions, PoolSpec
from pallas_kernels.reference.paged_attention import paged_attention, refusal, shared_pages
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.kept_pages import KeptPages
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

TOKENS, ROWS, LAYERS, LAYER, LONGEST = 96, 8, 2, 1, 300


@dataclass(frozen=True)
class Setting:
    page_size: int = 16
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 16
    window: int | None = None
    chunked: bool = False
    value_dim: int | None = None  # latent pages where there is one
    soft_cap: float | None = None
    sinks: bool = False
    dtype: str = "float32"
    pages: str | None = None  # their type where it is another one
    tokens: int = TOKENS

    @property
    def options(self) -> AttentionOptions:
        return AttentionOptions(
            scale=0.3 * (16 / self.head_dim) ** 0.5,
            soft_cap=self.soft_cap,
            chunked=self.chunked,
            value_dim=self.value_dim,
        )

    def pool(self, num_pages: int) -> PoolSpec:
        return PoolSpec(
            pages=num_pages,
            layers=LAYERS,
            page_size=self.page_size,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.pages or self.dtype,
            latent=self.value_dim is not None,
        )


SETTINGS = {
    "pages of 8 and a window": Setting(page_size=8, window=37),
    "pages of 48, one query head a KV head, soft cap": Setting(page_size=48, group=1, soft_cap=2.0),
    "one KV head for eight, sinks": Setting(kv_heads=1, group=8, sinks=True),
    "all options, window of one page": Setting(window=16, soft_cap=3.0, sinks=True),
    "a window that hides nothing": Setting(window=2**31 - 1, head_dim=64),
    "chunks of 37": Setting(page_size=8, window=37, chunked=True, head_dim=80),
    "latent pages": Setting(kv_heads=1, group=4, head_dim=96, value_dim=64, soft_cap=3.0),
    "bfloat16": Setting(page_size=8, dtype="bfloat16", head_dim=128),
    "int8 pages": Setting(pages="int8", head_dim=128, window=100),
    "float8 pages, sinks": Setting(page_size=8, pages="float8_e4m3fn", head_dim=256, sinks=True),
    "latent pages of int8": Setting(kv_heads=1, group=2, head_dim=96, value_dim=64, pages="int8"),
}


@pytest.fixture(params=SETTINGS.values(), ids=list(SETTINGS), scope="module")
def trial(request: pytest.FixtureRequest) -> "Trial":
    return Trial(request.param)


class Trial:
    """One compiled shape, and a run of random batches through it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.random = np.random.default_rng(7)
        self.dtype = jnp.dtype(setting.dtype)
        self.heads = setting.kv_heads * setting.group
        self.width = -(-LONGEST // setting.page_size)
        self.num_pages = ROWS * self.width + 3
        self.pool = setting.pool(self.num_pages)
        self.sinks = self.random.normal(size=self.heads).astype(np.float32) if setting.sinks else None
        self.call = jax.jit(
            lambda q, k, v, pool, batch, sinks, window: paged_attention(
                q, k, v, pool, LAYER, batch, setting.options, sinks, window
            )
        )

    def draw(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape).astype(self.dtype)

    def run(self, prefixes: list[int], counts: list[int], num_decode: int, shared: int = 0) -> None:
        """Sequences of `prefixes` tokens go on by `counts`; asserts the outputs and every number of the pool.

        Of the `shared` first tokens, whole pages are the first sequence's in all of them.
        """
        setting = self.setting
        row_count = 1 if self.pool.latent else 2 * setting.kv_heads
        pages = PagedSequences(self.random, self.num_pages, setting.page_size)
        pool = KeptPages(self.pool)
        sequences, histories = [], []
        for prefix, count in zip(prefixes, counts, strict=True):
            sequence = pages.begin(prefix + count)
            rows = self.draw(prefix + count, row_count, setting.head_dim)
            if sequences:
                whole = shared // setting.page_size
                sequence.pages[:whole] = sequences[0].pages[:whole]
                rows[: whole * setting.page_size] = histories[0][: whole * setting.page_size]
            self.write(pool, pages, sequence, rows, range(prefix))
            sequence.length = prefix
            sequences.append(sequence)
            histories.append(rows)
        steps = list(zip(sequences, counts, strict=True))
        batch = pages.batch(steps, num_decode=num_decode, tokens=setting.tokens, rows=ROWS, width=self.width)
        q = self.draw(setting.tokens, self.heads, setting.head_dim)
        new = self.draw(setting.tokens, row_count, setting.head_dim)
        before, at = pool.on_device(), 0
        for rows, (sequence, count) in zip(histories, steps, strict=True):
            new[at : at + count] = rows[sequence.length :]
            self.write(pool, pages, sequence, rows, range(sequence.length, sequence.length + count))
            at += count

        k, v = (new[:, :1], None) if self.pool.latent else (new[:, 0::2], new[:, 1::2])
        out, new_pool = self.call(q, k, v, before, batch, self.sinks, setting.window)
        pool.agree_with(new_pool)
        tolerance = 2e-5 if self.dtype == np.float32 else 4e-2
        right = self.definition(q, pool, pages, steps)
        np.testing.assert_allclose(np.asarray(out, np.float64), right, atol=tolerance, rtol=tolerance)

    def definition(
        self, q: np.ndarray, pool: KeptPages, pages: PagedSequences, steps: list[tuple[PagedSequence, int]]
    ) -> np.ndarray:
        """What attention gives over the pool's numbers; zero for padding."""
        setting, at = self.setting, 0
        out = np.zeros((*q.shape[:2], setting.value_dim or setting.head_dim))
        for sequence, count in steps:
            kept = pool.read([pages.slot(sequence, position) for position in range(sequence.length + count)])
            keys, values = (kept, None) if self.pool.latent else (kept[:, 0::2], kept[:, 1::2])
            for seen in range(sequence.length + 1, sequence.length + count + 1):
                seen_values = None if values is None else values[:seen]
                out[at] = attend_one(q[at], keys[:seen], seen_values, setting.options, self.sinks, setting.window)
                at += 1
        return out

    def write(
        self, pool: KeptPages, pages: PagedSequences, sequence: PagedSequence, rows: np.ndarray, positions: range
    ) -> None:
        if positions:
            pool.write([pages.slot(sequence, position) for position in positions], rows[positions.start :])

    def random_batch(self) -> tuple[list[int], list[int], int]:
        """Prefixes, counts and how many decode: up to ROWS sequences in the token bucket, of lengths 1 to LONGEST."""
        rows = int(self.random.integers(1, ROWS + 1))
        num_decode = int(self.random.integers(0, rows + 1))
        counts, room = [1] * num_decode, self.setting.tokens - rows
        for _ in range(rows - num_decode):
            more = int(self.random.integers(0, room + 1))
            counts.append(1 + more)
            room -= more
        prefixes = [int(self.random.integers(0, LONGEST - count + 1)) for count in counts]
        return prefixes, counts, num_decode


def test_random_mixes_of_decode_prefill_and_padding_attend_by_the_definition(trial: Trial) -> None:
    for _ in range(4):
        trial.run(*trial.random_batch())


def test_an_empty_batch_writes_nothing(trial: Trial) -> None:
    trial.run([], [], 0)


def test_the_longest_sequence_fills_its_page_table(trial: Trial) -> None:
    trial.run([LONGEST - 1], [1], 1)


def test_a_first_token_sees_itself_alone(trial: Trial) -> None:
    trial.run([0], [1], 1)


def test_a_bucket_full_of_prefill_from_an_empty_pool(trial: Trial) -> None:
    trial.run([0, 0], [TOKENS - 1, 1], 0)


def test_every_row_decodes(trial: Trial) -> None:
    trial.run([0, 1, 7, 8, 9, 63, 64, LONGEST - 1], [1] * ROWS, ROWS)


@pytest.mark.parametrize("shared", [47, 64, 200, 256])
def test_decoding_sequences_that_share_a_prefix_read_it_once(trial: Trial, shared: int) -> None:
    trial.run([shared, 299, shared + 1, 260, shared], [1] * 5, 5, shared)


def test_a_prefix_that_only_some_share(trial: Trial) -> None:
    trial.run([250, 299, 270, 256], [1, 1, 1, 17], 3, 240)  # the last one prefills
    trial.run([256], [1], 1, 256)  # a single one shares with nobody


def test_shared_pages_are_the_full_ones_that_all_live_rows_have_in_common() -> None:
    table = jnp.asarray([[4, 5, 6, 7], [4, 5, 6, 9], [4, 5, 8, 7], [1, 2, 3, 0]])

    def shared(rows: int, lens: list[int]) -> int:
        return int(shared_pages(table, jnp.arange(4) < rows, jnp.asarray(lens), page_size=8))

    assert shared(2, [30, 30, 30, 30]) == 3
    assert shared(3, [30, 30, 30, 30]) == 2
    assert shared(2, [30, 15, 30, 30]) == 1
    assert shared(4, [30, 30, 30, 30]) == 0
    assert shared(1, [30, 30, 30, 30]) == 0
    assert shared(0, [0, 0, 0, 0]) == 0


@pytest.mark.parametrize("prefix", [15, 16, 17, 63, 64, 65, 255])
def test_chunks_meet_page_and_tile_borders(trial: Trial, prefix: int) -> None:
    trial.run([prefix, 3], [33, 31], 0)


def test_a_bucket_of_one_token_decodes() -> None:
    Trial(Setting(tokens=1)).run([70], [1], 1)


@pytest.mark.parametrize(
    ("options", "heads", "change", "reason"),
    [
        (AttentionOptions(scale=1.0), 5, {}, "5 query heads do not share 2 KV heads"),
        (AttentionOptions(scale=1.0, value_dim=8), 4, {}, "latent pages go with a value_dim"),
        (AttentionOptions(scale=1.0), 4, {"latent": True}, "latent pages go with a value_dim"),
        (AttentionOptions(scale=1.0, value_dim=8), 4, {"latent": True}, "one KV head, not 2"),
        (AttentionOptions(scale=1.0), 4, {"dtype": "int16"}, "not int16"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    options: AttentionOptions, heads: int, change: dict, reason: str
) -> None:
    assert reason in str(refusal(options, heads, replace(Setting().pool(4), **change)))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
def test_what_is_tested_here_is_not_refused(setting: Setting) -> None:
    assert refusal(setting.options, setting.kv_heads * setting.group, setting.pool(4)) is None

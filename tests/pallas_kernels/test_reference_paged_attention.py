"""The reference attention against its definition, over random ragged batches in poisoned pools."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ragged import AttentionOptions
from pallas_kernels.reference.paged_attention import paged_attention
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

TOKENS, ROWS, LAYERS, LAYER, HEAD_DIM, LONGEST = 96, 8, 2, 1, 16, 300


@dataclass(frozen=True)
class Setting:
    page_size: int = 16
    kv_heads: int = 2
    group: int = 2
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    dtype: str = "float32"
    tokens: int = TOKENS


SETTINGS = {
    "pages of 8 and a window": Setting(page_size=8, window=37),
    "pages of 48, one query head a KV head, soft cap": Setting(page_size=48, group=1, soft_cap=2.0),
    "one KV head for eight, sinks": Setting(kv_heads=1, group=8, sinks=True),
    "all options, window of one page": Setting(window=16, soft_cap=3.0, sinks=True),
    "bfloat16": Setting(page_size=8, dtype="bfloat16"),
}


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS.keys(), scope="module")
def trial(request: pytest.FixtureRequest) -> "Trial":
    return Trial(request.param)


class Trial:
    """One compiled shape, and a run of random batches through it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.random = np.random.default_rng(7)
        self.dtype = jnp.dtype(setting.dtype)
        self.options = AttentionOptions(scale=0.3, soft_cap=setting.soft_cap)
        self.heads = setting.kv_heads * setting.group
        self.width = -(-LONGEST // setting.page_size)
        self.num_pages = ROWS * self.width + 3
        self.sinks = self.random.normal(size=self.heads).astype(np.float32) if setting.sinks else None
        self.call = jax.jit(
            lambda q, k, v, pool, batch, sinks, window: paged_attention(
                q, k, v, pool, LAYER, batch, self.options, sinks, window
            )
        )

    def draw(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape).astype(self.dtype)

    def run(self, prefixes: list[int], counts: list[int], num_decode: int) -> None:
        """Sequences of `prefixes` tokens go on by `counts`; asserts the outputs and every number of the pool."""
        kv_heads = self.setting.kv_heads
        pages = PagedSequences(self.random, self.num_pages, self.setting.page_size)
        pool = np.full((self.num_pages, LAYERS, self.setting.page_size, 2 * kv_heads, HEAD_DIM), np.nan, self.dtype)
        sequences, histories = [], []
        for prefix, count in zip(prefixes, counts, strict=True):
            sequence = pages.begin(prefix + count)
            keys, values = self.draw(prefix + count, kv_heads, HEAD_DIM), self.draw(prefix + count, kv_heads, HEAD_DIM)
            self.write(pool, pages, sequence, keys, values, range(prefix))
            sequence.length = prefix
            sequences.append(sequence)
            histories.append((keys, values))
        steps = list(zip(sequences, counts, strict=True))
        batch = pages.batch(steps, num_decode=num_decode, tokens=self.setting.tokens, rows=ROWS, width=self.width)
        q = self.draw(self.setting.tokens, self.heads, HEAD_DIM)
        k, v = (self.draw(self.setting.tokens, kv_heads, HEAD_DIM) for _ in range(2))
        expected, right_pool, at = np.zeros(q.shape), pool.copy(), 0
        for (keys, values), (sequence, count) in zip(histories, steps, strict=True):
            k[at : at + count], v[at : at + count] = keys[sequence.length :], values[sequence.length :]
            self.write(right_pool, pages, sequence, keys, values, range(sequence.length, sequence.length + count))
            for token in range(count):
                seen = sequence.length + token + 1
                expected[at + token] = attend_one(
                    q[at + token], keys[:seen], values[:seen], self.options, self.sinks, self.setting.window
                )
            at += count

        out, new_pool = self.call(q, k, v, pool, batch, self.sinks, self.setting.window)
        np.testing.assert_array_equal(np.asarray(new_pool, np.float32), right_pool.astype(np.float32))
        tolerance = 2e-5 if self.dtype == np.float32 else 4e-2
        np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=tolerance, rtol=tolerance)

    def write(
        self,
        pool: np.ndarray,
        pages: PagedSequences,
        sequence: PagedSequence,
        keys: np.ndarray,
        values: np.ndarray,
        positions: range,
    ) -> None:
        for position in positions:
            page, row = pages.slot(sequence, position)
            pool[page, LAYER, row, 0::2] = keys[position]
            pool[page, LAYER, row, 1::2] = values[position]

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


@pytest.mark.parametrize("prefix", [15, 16, 17, 63, 64, 65, 255])
def test_chunks_meet_page_and_tile_borders(trial: Trial, prefix: int) -> None:
    trial.run([prefix, 3], [33, 31], 0)


def test_a_bucket_of_one_token_decodes() -> None:
    Trial(Setting(tokens=1)).run([70], [1], 1)

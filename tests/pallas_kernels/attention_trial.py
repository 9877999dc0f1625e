"""An attention body that runs on a CPU against the definition, over ragged batches in poisoned pools."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dispatch import Body, paged_attention
from pallas_kernels.ragged import AttentionOptions, PoolSpec
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.kept_pages import LAYER, KeptPages
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

TOKENS, ROWS, LAYERS, LONGEST = 96, 8, 2, 300


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


class Trial:
    """One compiled shape, and a run of random batches through it."""

    def __init__(self, body: Body, setting: Setting) -> None:
        self.setting = setting
        self.random = np.random.default_rng(7)
        self.dtype = jnp.dtype(setting.dtype)
        self.heads = setting.kv_heads * setting.group
        self.width = -(-LONGEST // setting.page_size)
        self.num_pages = ROWS * self.width + 3
        self.pool = setting.pool(self.num_pages)
        self.sinks = self.random.normal(size=self.heads).astype(np.float32) if setting.sinks else None
        attend = paged_attention(body)
        self.call = jax.jit(
            lambda q, k, v, pool, batch, sinks, window: attend(
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

"""The Hopper prefill kernel in jax's GPU interpreter, against attention's definition, over poisoned pages.

The interpreter runs the warpgroups, barriers, TMA copies and shared memory of the kernel, and tells of races. It has no
`run_state`, so that one statement, the product with the values, is a dot product here; nor has it layouts, swizzles
and the rounding of approximate exp2 and tanh: those only the compiler and a GPU see.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels.gpu import prefill_attend
from pallas_kernels.gpu.paged_prefill import prefill
from pallas_kernels.gpu.prefill_schedule import BlockSizes
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, RaggedBatch
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.kept_pages import LAYER, KeptPages
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

TOKENS, LONGEST, SEQUENCES = 272, 320, 6
PREFILLED = 160  # tokens of a random batch, at most: interpreting is slow


@dataclass(frozen=True)
class Setting:
    head_dim: int = 64
    kv_heads: int = 1
    group: int = 2
    page_size: int = 16
    pages: str = "bfloat16"
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    heads: int | None = None  # that share a tile; as derived where None
    keys: int | None = None
    units: int | None = None


SETTINGS = {
    "one head a tile, 64 keys": Setting(kv_heads=2, group=2, heads=1, keys=64),
    "head size 128, ring of three": Setting(head_dim=128, group=3, page_size=32, heads=1, units=3),
    "three heads a tile, window, sinks": Setting(kv_heads=2, group=3, heads=3, page_size=64, window=37, sinks=True),
    "sixteen heads a tile, huge window": Setting(group=16, heads=16, sinks=True, window=2**31 - 1),
    "head size 80, five heads a tile, soft cap": Setting(head_dim=80, group=5, page_size=128, soft_cap=2.0, keys=64),
    "head size 96, int8 in pages of 256, window of itself": Setting(
        head_dim=96, kv_heads=2, page_size=256, pages="int8", window=1
    ),
    "float8, sinks, window": Setting(group=4, heads=1, page_size=64, pages="float8_e4m3fn", window=100, sinks=True),
    "float8 in pages of 128, all options": Setting(
        head_dim=128, kv_heads=3, group=1, page_size=128, pages="float8_e4m3fn", window=70, soft_cap=3.0, sinks=True
    ),
    "head size 192": Setting(head_dim=192, group=1, window=65),
    "head size 256": Setting(head_dim=256, group=1, page_size=256),
    "head size 256, int8": Setting(head_dim=256, group=1, page_size=64, pages="int8"),
}


def add_weighted_values(output: Array, weights: Array, values: Any) -> Array:
    """What the kernel's own does by a wgmma that accumulates in registers.

    In numpy, as the interpreter's own wgmma: a dot of XLA's would wait for a pool of threads in which, on two cores,
    the other warpgroups wait for this one.
    """
    shape = jax.ShapeDtypeStruct(output.shape, jnp.float32)
    output = jax.pure_callback(_multiply_and_add, shape, output, weights, values[...])
    plgpu.commit_smem()  # the values were read as by a thread, not as by the tensor cores
    return output


def _multiply_and_add(output: Array, weights: Array, values: Array) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # rows of a tile behind its chunk's end see the poison, and are not stored
        return np.asarray(output) + np.asarray(weights, np.float32) @ np.asarray(values, np.float32)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Interprets with race detection, and fails a test that raced."""
    monkeypatch.setattr(prefill_attend, "add_weighted_values", add_weighted_values)
    mosaic: Any = plgpu  # the interpreter came with jax 0.11
    with mosaic.force_gpu_interpret_mode(mosaic.InterpretGPUParams(detect_races=True)):
        yield
    out, err = capfd.readouterr()
    assert "RACE DETECTED" not in out + err


class Trial:
    """One compiled shape, and runs of batches through it."""

    def __init__(self, setting: Setting, sequences: int = SEQUENCES) -> None:
        self.setting, self.sequences = setting, sequences
        self.random = np.random.default_rng(7)
        self.options = AttentionOptions(scale=0.3 * (16 / setting.head_dim) ** 0.5, soft_cap=setting.soft_cap)
        self.width = -(-LONGEST // setting.page_size)
        self.spec = PoolSpec(
            pages=sequences * self.width + 3,
            layers=2,
            page_size=setting.page_size,
            kv_heads=setting.kv_heads,
            head_dim=setting.head_dim,
            dtype=setting.pages,
        )
        heads = setting.kv_heads * setting.group
        self.shape = (TOKENS, heads, setting.head_dim)
        self.sinks = self.random.normal(size=heads).astype(np.float32) if setting.sinks else None
        self.call = jax.jit(self.attend)

    def attend(self, q: Array, pool: Pool, batch: RaggedBatch, sinks: Array | None, window: Array | None) -> Array:
        chosen = {name: getattr(self.setting, name) for name in ("heads", "keys", "units")}
        blocks = BlockSizes.derived(self.shape, pool, self.sequences)
        # Two programs, so that each has several items in its ring, one after the other.
        blocks = replace(blocks, programs=2, **{name: value for name, value in chosen.items() if value is not None})
        return prefill(q, pool, LAYER, batch, self.options, sinks, window, blocks=blocks)

    def run(self, prefixes: list[int], counts: list[int], num_decode: int = 0) -> None:
        """Sequences of `prefixes` tokens go on by `counts`; asserts the outputs of those after num_decode."""
        setting = self.setting
        pages = PagedSequences(self.random, self.spec.pages, setting.page_size)
        pool, steps = KeptPages(self.spec), []
        for prefix, count in zip(prefixes, counts, strict=True):
            sequence = pages.begin(prefix + count)
            rows = self.random.normal(size=(prefix + count, 2 * setting.kv_heads, setting.head_dim))
            pool.write([pages.slot(sequence, position) for position in range(prefix + count)], rows)
            sequence.length = prefix
            steps.append((sequence, count))
        batch = pages.batch(steps, num_decode=num_decode, tokens=TOKENS, rows=self.sequences, width=self.width)
        q = self.random.normal(size=self.shape).astype(jnp.bfloat16)
        out = np.asarray(self.call(q, pool.on_device(), batch, self.sinks, setting.window), np.float64)
        at = sum(counts[:num_decode])
        for sequence, count in steps[num_decode:]:
            right = self.definition(q[at : at + count], pool, pages, sequence)
            np.testing.assert_allclose(out[at : at + count], right, atol=2e-2, rtol=2e-2)
            at += count

    def definition(self, q: np.ndarray, pool: KeptPages, pages: PagedSequences, sequence: PagedSequence) -> np.ndarray:
        kept = pool.read([pages.slot(sequence, position) for position in range(sequence.length + len(q))])
        keys, values, seen = kept[:, 0::2], kept[:, 1::2], sequence.length + 1
        return np.stack(
            [
                attend_one(row, keys[: seen + i], values[: seen + i], self.options, self.sinks, self.setting.window)
                for i, row in enumerate(q)
            ]
        )

    def random_batch(self) -> tuple[list[int], list[int], int]:
        rows = int(self.random.integers(2, self.sequences + 1))
        num_decode = int(self.random.integers(0, rows))
        cuts = np.sort(self.random.integers(0, PREFILLED - rows, rows - num_decode))
        counts = [1] * num_decode + [1 + int(more) for more in np.diff(cuts, prepend=0)]
        return [int(self.random.integers(0, LONGEST - count + 1)) for count in counts], counts, num_decode


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_random_chunks_attend_by_the_definition_without_races(setting: Setting) -> None:
    trial = Trial(setting)
    trial.run(*trial.random_batch())


@pytest.mark.parametrize("heads", [1, 2])
def test_chunks_begin_and_end_at_every_offset_in_a_page(heads: int) -> None:
    sizes = [5, 11, 16, 3, 9, 1, 14, 8, 2, 13, 6, 15, 4, 10, 7, 12]
    trial = Trial(Setting(heads=heads), sequences=len(sizes))
    trial.run(list(range(16)), sizes)


@pytest.mark.parametrize("heads", [1, 2])
def test_tiles_are_full_or_a_token_short_or_a_token_long(heads: int) -> None:
    trial = Trial(Setting(heads=heads, page_size=32))
    trial.run([0, 200, 63], [128 // heads, 64 // heads - 1, 64 // heads + 1])


def test_a_batch_of_only_decode_touches_nothing() -> None:
    Trial(Setting()).run([9, 200], [1, 1], 2)

"""The GPU decode kernel against the definition of attention, in Pallas's interpreter, races watched for.

What the interpreter does not show: swizzles and wgmma descriptors, layouts of registers, the approximate exp2 and tanh
of the hardware, and the fences between the copy engine's view of shared memory and the threads'.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu import paged_attention as gpu
from pallas_kernels.gpu import paged_decode, prefill_attend
from pallas_kernels.gpu.decode_cut import DecodeBlocks
from pallas_kernels.gpu.prefill_schedule import BlockSizes
from pallas_kernels.quantization import quantize
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages
from pallas_kernels.reference import paged_attention as reference
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences
from tests.targets import test_gpu_prefill_interpreted

LAYER, LAYERS = 1, 2

if jax.__version_info__ < (0, 11):
    raise RuntimeError(
        f"jax {jax.__version__} has no public interpreter of Mosaic GPU: run this with jax 0.11 or newer"
    )


@dataclass(frozen=True)
class Step:
    """One decode step: some sequences, and two rows of the bucket that no sequence has."""

    lengths: tuple[int, ...] = (70, 1)
    head_dim: int = 64
    kv_heads: int = 1
    group: int = 8
    page_size: int = 16
    page_dtype: str = "bfloat16"
    soft_cap: float | None = None
    window: int | None = None
    chunked: bool = False
    sinks: bool = False
    ctas: int = 2
    keys: int = 64


STEPS = [
    Step(lengths=(150, 17, 64), kv_heads=2, group=4, head_dim=128, ctas=3),
    Step(lengths=(300,), ctas=4, page_size=128, sinks=True),  # one sequence over several CTAs
    Step(keys=128, page_size=32, lengths=(140,), window=50, soft_cap=3.0),
    Step(lengths=(70, 130), window=40, chunked=True, sinks=True),
    Step(head_dim=80, group=1, soft_cap=5.0),
    Step(head_dim=96, lengths=(100,), group=3),
    Step(head_dim=192, lengths=(70,), page_size=256),
    Step(head_dim=256, lengths=(70,), window=20),
    Step(lengths=(66,), group=40),  # two units of one KV head
    Step(lengths=(150, 3), page_size=64, page_dtype="int8", kv_heads=2, window=100),
    Step(lengths=(150,), page_size=128, page_dtype="float8_e4m3fn", head_dim=128, sinks=True),
    Step(lengths=(70,), page_size=64, page_dtype="int8", head_dim=96),
]


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_kernel_attends_as_defined_and_without_races(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(len(str(step)))
    pages = sum(-(-length // step.page_size) for length in step.lengths) + 3
    sequences = PagedSequences(random, num_pages=pages, page_size=step.page_size)
    owners = [sequences.begin(length) for length in step.lengths]
    for owner, length in zip(owners, step.lengths, strict=True):
        owner.length = length - 1
    rows = len(owners) + 2
    width = max(len(owner.pages) for owner in owners) + 1
    new = [(owner, 1) for owner in owners]
    batch = sequences.batch(new, num_decode=len(owners), tokens=rows, rows=rows, width=width)
    pool, plain = _pool(step, pages, sequences, owners, random)
    heads = step.kv_heads * step.group
    q = jnp.asarray(random.normal(size=(rows, heads, step.head_dim)), jnp.bfloat16)
    sinks = jnp.asarray(random.normal(size=heads) * 2, jnp.float32) if step.sinks else None
    options = AttentionOptions(scale=step.head_dim**-0.5, soft_cap=step.soft_cap, chunked=step.chunked)
    window = None if step.window is None else jnp.int32(step.window)
    blocks = DecodeBlocks(keys=step.keys, stages=2, ctas=step.ctas)

    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        out = paged_decode.decode(q, pool, jnp.int32(LAYER), batch, options, sinks, window, blocks=blocks)
    out = np.asarray(out, np.float64)

    said = capfd.readouterr()
    assert "RACE DETECTED" not in said.out + said.err
    assert not out[len(owners) :].any()
    for row, owner in enumerate(owners):
        keys, values = _history(plain, sequences, owner, step)
        query = np.asarray(q[row], np.float64)
        expected = attend_one(query, keys, values, options, None if sinks is None else np.asarray(sinks), step.window)
        np.testing.assert_allclose(out[row], expected, atol=0.02, rtol=0.02)


def _pool(
    step: Step, pages: int, sequences: PagedSequences, owners: list[PagedSequence], random: np.random.Generator
) -> tuple[Pool, np.ndarray]:
    """The pool, with NaN wherever no token of the step may look, and its numbers in float64."""
    shape = (pages, LAYERS, step.page_size, 2 * step.kv_heads, step.head_dim)
    numbers = jnp.asarray(random.normal(size=shape), jnp.bfloat16)
    hidden = np.ones(shape[:3], bool)
    for owner in owners:
        for position in range(_first_visible(owner.length, step), owner.length + 1):
            page, row = sequences.slot(owner, position)
            hidden[page, LAYER, row] = False
    if step.page_dtype == "bfloat16":
        return jnp.where(hidden[..., None, None], jnp.nan, numbers), np.asarray(numbers, np.float64)
    values, scales = quantize(numbers, step.page_dtype)
    plain = np.asarray(values, np.float64) * np.asarray(scales, np.float64)[..., None]
    if step.page_dtype == "float8_e4m3fn":
        values = jnp.where(hidden[..., None, None], jnp.asarray(jnp.nan, values.dtype), values)
    return QuantizedPages(values, jnp.where(hidden[..., None], jnp.nan, scales)), plain


def _first_visible(position: int, step: Step) -> int:
    if step.window is None:
        return 0
    return position // step.window * step.window if step.chunked else max(position - step.window + 1, 0)


def _history(
    plain: np.ndarray, sequences: PagedSequences, owner: PagedSequence, step: Step
) -> tuple[np.ndarray, np.ndarray]:
    """keys and values [N, K, C] of all positions of a sequence."""
    slots = [sequences.slot(owner, position) for position in range(owner.length + 1)]
    rows = np.stack([plain[page, LAYER, row] for page, row in slots])
    return rows[:, 0::2], rows[:, 1::2]


def test_decoding_sequences_and_a_chunk_share_a_batch_as_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """New rows are written, each token takes its kernel's output, and padding is zero."""
    interpretable = test_gpu_prefill_interpreted.add_weighted_values
    monkeypatch.setattr(prefill_attend, "add_weighted_values", interpretable)
    random = np.random.default_rng(3)
    sequences = PagedSequences(random, num_pages=12, page_size=16)
    owners = [sequences.begin(48) for _ in range(3)]
    owners[0].length, owners[1].length, owners[2].length = 37, 5, 20
    steps = [(owners[0], 1), (owners[1], 1), (owners[2], 7)]
    batch = sequences.batch(steps, num_decode=2, tokens=12, rows=4, width=3)
    pool = jnp.asarray(random.normal(size=(12, LAYERS, 16, 2, 64)), jnp.bfloat16)
    q = jnp.asarray(random.normal(size=(12, 4, 64)), jnp.bfloat16)
    k, v = jnp.asarray(random.normal(size=(2, 12, 1, 64)), jnp.bfloat16)
    options = AttentionOptions(scale=0.125)
    prefill = replace(BlockSizes.derived(q.shape, pool, 4), programs=2)
    blocks = gpu.Blocks(DecodeBlocks(keys=64, stages=2, ctas=2), prefill)

    expected, written = reference.paged_attention(q, k, v, pool, LAYER, batch, options)
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        out, ours = gpu.paged_attention(q, k, v, pool, LAYER, batch, options, blocks=blocks)

    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(written, np.float32))
    assert not np.asarray(out[9:], np.float32).any()
    np.testing.assert_allclose(np.asarray(out, np.float32), np.asarray(expected, np.float32), atol=0.03, rtol=0.03)

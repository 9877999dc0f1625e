"""Every kernel against its definition in float64 numpy, on numbers that are new in every run.

Pages hold NaN wherever nothing was written, page tables name strangers' pages beyond a sequence's end, and free device
memory holds NaN, so that an output nobody wrote shows.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dispatch import attention_body, grouped_matmul_body
from pallas_kernels.grouped import quantized_experts
from pallas_kernels.quantization import PAGE_DTYPES, dequantize, quantize
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, QuantizedPages
from scripts.gpu_bench.report import Recorder
from scripts.gpu_bench.scale import Scale
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.grouped_rows import draw, in_float64
from tests.pallas_kernels.ragged_sequences import PagedSequence, PagedSequences

LAYER, LAYERS = 1, 2
TOLERANCE = 0.02  # of the largest number expected: roundings of weights and results to bfloat16
CAPPED_TOLERANCE = 0.05  # the hardware's tanh is right to 2**-11, times the cap
POISONED = 1 << 28  # bytes of free memory that hold NaN
CHECKED = 24  # tokens of a batch


@dataclass(frozen=True)
class Case:
    title: str
    heads: int
    kv_heads: int
    pages: str
    news: tuple[int, ...]  # new tokens of each sequence, those with one first
    soft_cap: float | None = None
    sinks: bool = False
    window: int | None = None


def decode(scale: Scale, out: Recorder) -> None:
    _attention(scale, out, "decode", (1,) * 7)


def prefill(scale: Scale, out: Recorder) -> None:
    _attention(scale, out, "prefill", (150, 33, 7))


def mixed(scale: Scale, out: Recorder) -> None:
    _attention(scale, out, "mixed", (1, 1, 1, 70, 20))


def _attention(scale: Scale, out: Recorder, title: str, news: tuple[int, ...]) -> None:
    seed = secrets.randbits(32)
    out.note(f"{title}: seed {seed}")
    for index, (heads, kv_heads) in enumerate(scale.heads):
        cases = [Case(f"{title} {heads}/{kv_heads}", heads, kv_heads, scale.dtype, news)]
        if index == 0:
            cases += [Case(f"{title} {dtype}", heads, kv_heads, dtype, news) for dtype in PAGE_DTYPES]
            cases.append(Case(f"{title} capped, sinks, window", heads, kv_heads, scale.dtype, news, 30.0, True, 100))
        for case in cases:
            _check(scale, out, case, np.random.default_rng(seed))


def _check(scale: Scale, out: Recorder, case: Case, random: np.random.Generator) -> None:
    body, options = attention_body(scale.body), AttentionOptions(scale.head_dim**-0.5, case.soft_cap)
    prefixes = random.integers(0, scale.check_context, len(case.news)).tolist()
    width = -(-(max(prefixes) + max(case.news)) // scale.page_size) + 1
    num_pages = width * len(case.news)
    spec = PoolSpec(num_pages, LAYERS, scale.page_size, case.kv_heads, scale.head_dim, jnp.dtype(case.pages))
    reason = body.refusal(options, case.heads, spec)
    if reason is not None:
        out.note(f"{case.title}: {reason}")
        return
    sequences = PagedSequences(random, num_pages, scale.page_size)
    owners = [sequences.begin(prefix + new) for prefix, new in zip(prefixes, case.news, strict=True)]
    rows = [
        _draw(random, scale, prefix + new, 2 * case.kv_heads) for prefix, new in zip(prefixes, case.news, strict=True)
    ]
    seen = [_as_kept(r, case.pages) for r in rows]
    pool = _poisoned(spec, sequences, owners, rows, prefixes)
    for owner, prefix in zip(owners, prefixes, strict=True):
        owner.length = prefix
    tokens, decoding = sum(case.news), sum(new == 1 for new in case.news)
    batch = sequences.batch(
        list(zip(owners, case.news, strict=True)),
        num_decode=decoding,
        tokens=tokens + 3,
        rows=len(case.news) + 1,
        width=width,
    )
    new = np.concatenate([r[p:] for r, p in zip(rows, prefixes, strict=True)])
    q = _draw(random, scale, tokens, case.heads)
    sinks = random.standard_normal(case.heads).astype(np.float32) if case.sinks else None
    operands = [jnp.asarray(np.pad(x, ((0, 3), (0, 0), (0, 0))), scale.dtype) for x in (q, new[:, 0::2], new[:, 1::2])]
    before = jax.tree.map(np.asarray, pool)
    _poison_free_memory()
    result, pool = jax.jit(lambda pool, q, k, v: body.attend(q, k, v, pool, LAYER, batch, options, sinks, case.window))(
        pool, *operands
    )
    found = np.asarray(result.astype(jnp.float32), np.float64)
    errors, largest = [0.0], 1e-30
    where = [(s, p, begin + p) for s, begin in enumerate(np.cumsum([0, *case.news[:-1]])) for p in range(case.news[s])]
    for s, offset, token in (where[i] for i in sorted(random.permutation(len(where))[:CHECKED])):
        history = seen[s][: prefixes[s] + offset + 1]
        expected = attend_one(q[token], history[:, 0::2], history[:, 1::2], options, sinks, case.window)
        largest = max(largest, float(np.abs(expected).max()))
        errors.append(float(np.abs(found[token] - expected).max()))
    error = float(np.max(errors)) / largest  # NaN stays NaN
    limit = CAPPED_TOLERANCE if case.soft_cap else TOLERANCE
    out.check(case.title, bool(error <= limit), f"off by {error:.2e} of the largest number, {limit} is allowed")
    kept = _others_kept(before, jax.tree.map(np.asarray, pool), sequences, owners, case.news)
    out.check(f"{case.title}: pages", kept, "rows of the new tokens alone have changed" if kept else "others changed")


def _draw(random: np.random.Generator, scale: Scale, count: int, rows: int) -> np.ndarray:
    """Numbers that the device's type holds exactly."""
    numbers = random.standard_normal((count, rows, scale.head_dim)).astype(np.float32)
    return np.asarray(jnp.asarray(numbers, scale.dtype).astype(jnp.float32))


def _as_kept(rows: np.ndarray, dtype: str) -> np.ndarray:
    if dtype not in PAGE_DTYPES:
        return rows
    return np.asarray(dequantize(*quantize(jnp.asarray(rows), jnp.dtype(dtype))))


def _poisoned(
    spec: PoolSpec,
    sequences: PagedSequences,
    owners: list[PagedSequence],
    rows: list[np.ndarray],
    prefixes: list[int],
) -> Pool:
    """A pool that holds each sequence's first rows, and NaN elsewhere; 8-bit pages have it in their scales."""
    shape = (spec.pages, spec.layers, spec.page_size, 2 * spec.kv_heads, spec.head_dim)
    values, scales = np.full(shape, np.nan, np.float32), np.full(shape[:-1], np.nan, np.float32)
    quantized = jnp.dtype(spec.dtype).name in PAGE_DTYPES
    if quantized:
        values[:] = 100.0
    for owner, mine, prefix in zip(owners, rows, prefixes, strict=True):
        kept, scale = quantize(jnp.asarray(mine), spec.dtype) if quantized else (jnp.asarray(mine), None)
        kept = np.asarray(kept.astype(jnp.float32))
        scale = None if scale is None else np.asarray(scale)
        for position in range(prefix):
            page, row = sequences.slot(owner, position)
            values[page, LAYER, row] = kept[position]
            if scale is not None:
                scales[page, LAYER, row] = scale[position]
    pages = jnp.asarray(values, spec.dtype)
    return QuantizedPages(pages, jnp.asarray(scales)) if quantized else pages


def _others_kept(
    before: Any, after: Any, sequences: PagedSequences, owners: list[PagedSequence], news: tuple[int, ...]
) -> bool:
    """Whether every row of the pool but those of new tokens has the bytes that it had."""
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        changed = old.copy().view(np.uint8), new.copy().view(np.uint8)
        for owner, count in zip(owners, news, strict=True):
            for position in range(owner.length, owner.length + count):
                page, row = sequences.slot(owner, position)
                for leaf in changed:
                    leaf[page, LAYER, row] = 0
        if not np.array_equal(*changed):
            return False
    return True


def _poison_free_memory() -> None:
    jax.block_until_ready(jnp.full(POISONED // 4, jnp.nan, jnp.float32))


def grouped(scale: Scale, out: Recorder) -> None:
    seed = secrets.randbits(31)
    out.note(f"grouped: seed {seed}")
    matmul = grouped_matmul_body(scale.body).matmul
    for title, m, sizes in (("decode", 64, [0, 3, 0, 0, 33, 1, 27, 0]), ("prefill", 700, [300, 0, 1, 390])):
        for dtype, group in ((scale.dtype, None), ("int8", None), ("float8_e4m3fn", 128)):
            weights: Any = draw((len(sizes), 2, 256, 384), jnp.float32, seed)
            weights = weights.astype(dtype) if dtype == scale.dtype else quantized_experts(weights, dtype, group)
            x = draw((m, 256), jnp.dtype(scale.dtype), seed + 1)
            _poison_free_memory()
            result = jax.jit(matmul)(x, weights, jnp.asarray(sizes, jnp.int32))
            expected = in_float64(x, weights, sizes)
            found = np.asarray(result.astype(jnp.float32), np.float64)[: len(expected)]
            error = float(np.abs(found - expected).max() / np.abs(expected).max())
            out.check(f"grouped {title} {dtype}", bool(error <= TOLERANCE), f"off by {error:.2e} of the largest number")

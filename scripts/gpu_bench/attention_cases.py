"""Attention over pages, as a model calls it: layer after layer of one pool, new rows written first."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dispatch import PagedAttention, attention_body
from pallas_kernels.ragged import AttentionOptions, Pool, RaggedBatch
from scripts.gpu_bench.batches import filled_pool, ragged_batch
from scripts.gpu_bench.clock import seconds_of
from scripts.gpu_bench.report import Recorder
from scripts.gpu_bench.scale import Scale

MOST_LAYERS = 8
LAYERS_OF_A_CALL = 16  # so that a call's launch is a small part of it

State = tuple[Pool, jax.Array]
Step = Callable[[State], State]


def decode(scale: Scale, out: Recorder) -> None:
    for heads, kv_heads in scale.heads:
        for batch in scale.batches:
            for context in scale.contexts:
                _time(scale, out, heads, kv_heads, [context] * batch, [1] * batch, scale.dtype)
    if scale.body == "gpu":
        for pages in ("float8_e4m3fn", "int8"):
            heads, kv_heads = scale.heads[0]
            _time(scale, out, heads, kv_heads, [4096] * 64, [1] * 64, pages)


def prefill(scale: Scale, out: Recorder) -> None:
    heads, kv_heads = scale.heads[0]
    for tokens in scale.prefills:
        _time(scale, out, heads, kv_heads, [tokens], [tokens], scale.dtype)
    _time(scale, out, heads, kv_heads, [max(scale.contexts[:3])], [scale.chunk], scale.dtype)
    if scale.body == "gpu":
        _time(scale, out, heads, kv_heads, [8192], [8192], "float8_e4m3fn")


def mixed(scale: Scale, out: Recorder) -> None:
    """Sequences that decode beside one chunk of a prompt."""
    heads, kv_heads = scale.heads[0]
    for batch in scale.batches[:3]:
        lengths = [*([scale.contexts[0]] * batch), scale.chunk]
        _time(scale, out, heads, kv_heads, lengths, [*([1] * batch), scale.chunk], scale.dtype)


def _time(
    scale: Scale,
    out: Recorder,
    heads: int,
    kv_heads: int,
    lengths: Sequence[int],
    news: Sequence[int],
    page_dtype: str,
) -> None:
    case = _title(heads, kv_heads, lengths, news, page_dtype)
    pages = sum(-(-length // scale.page_size) for length in lengths)
    position = 2 * kv_heads * scale.head_dim * jnp.dtype(page_dtype).itemsize
    layers = min(MOST_LAYERS, scale.memory // (pages * scale.page_size * position))
    if layers == 0:
        out.note(f"{case}: left out, its pages take more than {scale.memory >> 30} GiB")
        return
    width = -(-max(lengths) // scale.page_size)
    batch = ragged_batch(lengths, news, pages=pages, page_size=scale.page_size, width=width)
    pool = filled_pool(scale, pages, layers, kv_heads, page_dtype)
    tokens = sum(news)
    random = np.random.default_rng(1)
    q = jnp.asarray(random.standard_normal((tokens, heads, scale.head_dim), np.float32), scale.dtype)
    k = jnp.asarray(random.standard_normal((tokens, kv_heads, scale.head_dim), np.float32), scale.dtype)
    program = through_layers(attention_body(scale.body).attend, q, k, batch, layers)
    seconds, state = seconds_of(program, (pool, jnp.zeros_like(q)), runs=scale.runs, queued=2)
    del state
    pairs = sum(new * (length - new) + new * (new + 1) // 2 for length, new in zip(lengths, news, strict=True))
    out.figure(
        case,
        seconds / LAYERS_OF_A_CALL,
        bytes=sum(lengths) * position + 2 * q.nbytes,
        flops=4.0 * heads * scale.head_dim * pairs,
    )


def through_layers(attend: PagedAttention, q: jax.Array, k: jax.Array, batch: RaggedBatch, layers: int) -> Step:
    """A program of LAYERS_OF_A_CALL layers over a pool of `layers`."""
    options = AttentionOptions(q.shape[2] ** -0.5)

    def call(state: State) -> State:
        def layer(index: jax.Array, state: State) -> State:
            done, pool = attend(q, k, k, state[0], index % layers, batch, options)
            return pool, done

        return jax.lax.fori_loop(0, LAYERS_OF_A_CALL, layer, state)

    return jax.jit(call, donate_argnums=0)


def _title(heads: int, kv_heads: int, lengths: Sequence[int], news: Sequence[int], page_dtype: str) -> str:
    decoding = sum(new == 1 for new in news)
    parts = [] if not decoding else [f"{decoding} decode at {lengths[0]}"]
    if decoding < len(news):
        parts.append(f"chunk of {news[-1]} at {lengths[-1]}")
    return f"{' + '.join(parts)}, {heads}/{kv_heads} heads, {page_dtype}"

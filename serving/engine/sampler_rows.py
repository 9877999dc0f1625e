"""Per-sequence sampler state that lives on the device: what a draw depends on beside the logits and the parameters.

A row belongs to one sequence while it is admitted. All arrays are indexed by row first, and every function here is
pure and meant to run under jit with the rows donated, where each update is in place.

Letters: R rows, S sequences in the step, V vocabulary, W = ceil(V / 32) words of a bitmask over the vocabulary. Token v
is bit v % 32 of word v // 32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from serving.engine.plan import Admission
from serving.engine.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_EOS_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
)

NO_ID = -1  # pads every list of token ids
MAX_COUNT = np.iinfo(np.uint16).max
_PREFIX = MAX_BAD_WORD_TOKENS - 1
ALL_BITS = np.uint32(0xFFFFFFFF)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplerRows:
    """State of all R rows. Written by `admit` and `record` only."""

    last_token: Array  # [R] int32; feeds the next step, which is dispatched before the host has read it
    output_counts: Array  # [R, V] uint16; how often each token was generated; saturates at 65535
    prompt_seen: Array  # [R, W] uint32 bitmask of the tokens in the prompt
    allowed: Array  # [R, W] uint32 bitmask of the tokens that may be drawn; all ones where there is no restriction
    bias_ids: Array  # [R, MAX_LOGIT_BIAS] int32, padded by NO_ID
    bias_values: Array  # [R, MAX_LOGIT_BIAS] float32
    stop_ids: Array  # [R, MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS] int32, padded by NO_ID
    bad_words: Array  # [R, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS] int32, right-aligned: the banned token is the last
    recent: Array  # [R, MAX_BAD_WORD_TOKENS - 1] int32; the last output tokens, right-aligned

    @property
    def num_rows(self) -> int:
        return self.output_counts.shape[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowSetup:
    """One row's state as numpy arrays, ready for upload: the fields of `SamplerRows` less their first dimension."""

    row: Array | np.ndarray  # [] int32
    last_token: Array | np.ndarray  # [] int32
    output_counts: Array | np.ndarray
    prompt_seen: Array | np.ndarray
    allowed: Array | np.ndarray
    bias_ids: Array | np.ndarray
    bias_values: Array | np.ndarray
    stop_ids: Array | np.ndarray
    bad_words: Array | np.ndarray
    recent: Array | np.ndarray


def words_of(vocab_size: int) -> int:
    """Number of 32-bit words that hold one bit per token."""
    return -(-vocab_size // 32)


def init_rows(num_rows: int, vocab_size: int) -> SamplerRows:
    """Neutral rows: nothing counted, nothing banned, every token allowed."""
    words = words_of(vocab_size)
    return SamplerRows(
        last_token=jnp.zeros((num_rows,), jnp.int32),
        output_counts=jnp.zeros((num_rows, vocab_size), jnp.uint16),
        prompt_seen=jnp.zeros((num_rows, words), jnp.uint32),
        allowed=jnp.full((num_rows, words), ALL_BITS, jnp.uint32),
        bias_ids=jnp.full((num_rows, MAX_LOGIT_BIAS), NO_ID, jnp.int32),
        bias_values=jnp.zeros((num_rows, MAX_LOGIT_BIAS), jnp.float32),
        stop_ids=jnp.full((num_rows, MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS), NO_ID, jnp.int32),
        bad_words=jnp.full((num_rows, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), NO_ID, jnp.int32),
        recent=jnp.full((num_rows, _PREFIX), NO_ID, jnp.int32),
    )


def admission_arrays(admission: Admission, vocab_size: int) -> RowSetup:
    """Computes a row's state on the host, so that one compiled `admit` serves prompts of every length.

    Token ids must lie in [0, vocab_size) and lists within their limits in `request`; both are checked where requests
    are accepted (`intake`). What does not fit raises ValueError or IndexError here, before anything reaches the device.
    """
    sampling, output = admission.sampling, admission.output_token_ids
    counts = np.bincount(np.asarray(output, np.int64), minlength=vocab_size)
    if counts.size > vocab_size:
        raise ValueError(f"output_token_ids of row {admission.row} hold an id outside the vocabulary of {vocab_size}")
    last = output or admission.prompt_token_ids
    bias = sampling.logit_bias
    return RowSetup(
        row=np.array(admission.row, np.int32),
        last_token=np.array(last[-1] if last else 0, np.int32),
        output_counts=np.minimum(counts, MAX_COUNT).astype(np.uint16),
        prompt_seen=bitmask(admission.prompt_token_ids, vocab_size),
        allowed=_allowed_mask(sampling.allowed_token_ids, vocab_size),
        bias_ids=_padded([i for i, _ in bias], MAX_LOGIT_BIAS, "logit_bias"),
        bias_values=np.array([v for _, v in bias] + [0.0] * (MAX_LOGIT_BIAS - len(bias)), np.float32),
        stop_ids=_padded(
            (*sampling.eos_token_ids, *sampling.stop_token_ids),
            MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS,
            "eos_token_ids and stop_token_ids",
        ),
        bad_words=_bad_word_table(sampling.bad_words),
        recent=_padded(output[-_PREFIX:], _PREFIX, "recent", right_aligned=True),
    )


def bitmask(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """[W] uint32 with the bits of `token_ids` set. Raises IndexError for an id outside the vocabulary."""
    bits = np.zeros(words_of(vocab_size) * 32, np.uint8)
    bits[:vocab_size][np.asarray(token_ids, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _allowed_mask(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    if not token_ids:
        return np.full(words_of(vocab_size), ALL_BITS, np.uint32)
    return bitmask(token_ids, vocab_size)


def _padded(ids: Sequence[int], size: int, name: str, right_aligned: bool = False) -> np.ndarray:
    if len(ids) > size:
        raise ValueError(f"{name} holds {len(ids)} entries, at most {size} fit")
    padded = np.full(size, NO_ID, np.int32)
    start = size - len(ids) if right_aligned else 0
    padded[start : start + len(ids)] = ids
    return padded


def _bad_word_table(words: Sequence[Sequence[int]]) -> np.ndarray:
    if len(words) > MAX_BAD_WORDS:
        raise ValueError(f"bad_words holds {len(words)} entries, at most {MAX_BAD_WORDS} fit")
    table = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), NO_ID, np.int32)
    for i, word in enumerate(words):
        table[i] = _padded(word, MAX_BAD_WORD_TOKENS, "a bad word", right_aligned=True)
    return table


def admit(rows: SamplerRows, setup: RowSetup) -> SamplerRows:
    """Overwrites one row. Under jit with `rows` donated it writes that row and copies nothing else."""
    row = setup.row
    return SamplerRows(
        last_token=rows.last_token.at[row].set(setup.last_token),
        output_counts=rows.output_counts.at[row].set(setup.output_counts),
        prompt_seen=rows.prompt_seen.at[row].set(setup.prompt_seen),
        allowed=rows.allowed.at[row].set(setup.allowed),
        bias_ids=rows.bias_ids.at[row].set(setup.bias_ids),
        bias_values=rows.bias_values.at[row].set(setup.bias_values),
        stop_ids=rows.stop_ids.at[row].set(setup.stop_ids),
        bad_words=rows.bad_words.at[row].set(setup.bad_words),
        recent=rows.recent.at[row].set(setup.recent),
    )


def record_last(last_token: Array, row: Array, tokens: Array) -> Array:
    """Stores tokens [S] as the last ones [R] of `row` [S]; negative tokens (`NO_ID`) are not stored."""
    target = jnp.where(tokens >= 0, row, last_token.shape[0])
    return last_token.at[target].set(tokens, mode="drop")


def record(rows: SamplerRows, row: Array, tokens: Array) -> SamplerRows:
    """Does `record_last`, counts the tokens, and appends them to `recent`. A row may occur once among those stored."""
    target = jnp.where(tokens >= 0, row, rows.num_rows)
    before = rows.output_counts.at[target, tokens].get(mode="fill", fill_value=0)
    after = jnp.minimum(before, jnp.uint16(MAX_COUNT - 1)) + jnp.uint16(1)
    shifted = jnp.concatenate([rows.recent.at[target, 1:].get(mode="clip"), tokens[:, None]], axis=1)
    return replace(
        rows,
        last_token=record_last(rows.last_token, row, tokens),
        output_counts=rows.output_counts.at[target, tokens].set(after, mode="drop"),
        recent=rows.recent.at[target].set(shifted, mode="drop"),
    )

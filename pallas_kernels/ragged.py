"""One ragged batch, the pages it reads, and what a family asks of attention: as every attention body takes them.

A step's tokens lie flat, sequence after sequence: sequence s owns tokens cu_q_lens[s] .. cu_q_lens[s+1] of the batch,
and they are the last of its kv_lens[s] positions. Sequences that decode (one token each) come first.

    tokens      | a | b | c | d d d d d | e e e | padding |
    cu_q_lens   0   1   2   3           8      11
    num_decode = 3, num_seqs = 5, T = 16 (the bucket)
"""

from dataclasses import dataclass

import jax
from jax import Array
from jax.typing import DTypeLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RaggedBatch:
    page_table: Array  # [S, P] int32: the page that holds positions p*page_size .. of sequence s
    kv_lens: Array  # [S] int32: positions of sequence s after this step's tokens are written
    cu_q_lens: Array  # [S+1] int32: where each sequence's tokens begin; constant beyond num_seqs
    num_decode: Array  # [] int32
    num_seqs: Array  # [] int32
    positions: Array  # [T] int32: of each token in its sequence
    sequence_ids: Array  # [T] int32: the sequence of each token; S for padding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedPages:
    """Pages in 8 bits: a value is values * scales. The scale is per position and KV row."""

    values: Array  # [pages, L, page_size, 2K, C] int8 | float8_e4m3fn
    scales: Array  # [pages, L, page_size, 2K] float32


Pool = Array | QuantizedPages
"""[pages, L, page_size, 2K, C], page-major: k of head i at row 2i, v at 2i+1. A body may lay the last two otherwise;
who allocates asks it (see `dispatch.AttentionBody`)."""


@dataclass(frozen=True)
class PoolSpec:
    """What a pool has to hold, before a body says how it lies."""

    pages: int
    layers: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: DTypeLike  # of the numbers in pages; int8 and float8_e4m3fn come with scales
    latent: bool = False  # one row of head_dim a position, which is key and value (see AttentionOptions.value_dim)


@dataclass(frozen=True)
class AttentionOptions:
    """What a model family may ask of attention. Static: part of the compiled program."""

    scale: float
    soft_cap: float | None = None  # scores become cap * tanh(scores / cap)
    chunked: bool = False
    """What `window` means. False: a token sees itself and the window-1 positions before it. True: a token sees its own
    chunk of `window` positions, from position // window * window up to itself (Llama 4)."""
    value_dim: int | None = None
    """Latent attention (DeepSeek): pages hold one row of C a position (pool [pages, L, page_size, 1, C], K = 1, v is
    None), whose first value_dim numbers are the value; the output is [T, H, value_dim]."""

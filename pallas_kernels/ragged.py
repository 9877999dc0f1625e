"""The description of one ragged batch, as every attention body takes it.

A step's tokens lie flat, sequence after sequence: sequence s owns tokens cu_q_lens[s] .. cu_q_lens[s+1] of the batch,
and they are the last of its kv_lens[s] positions. Sequences that decode (one token each) come first.

    tokens      | a | b | c | d d d d d | e e e | padding |
    cu_q_lens   0   1   2   3           8      11
    num_decode = 3, num_seqs = 5, T = 16 (the bucket)
"""

from dataclasses import dataclass

import jax
from jax import Array


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


@dataclass(frozen=True)
class AttentionOptions:
    """What a model family may ask of attention. Static: part of the compiled program."""

    scale: float
    window: int | None = None  # a token sees itself and the window-1 positions before it
    soft_cap: float | None = None  # scores become cap * tanh(scores / cap)

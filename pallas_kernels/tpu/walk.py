"""Inside a kernel: which sequence comes next, read from cu_q_lens in SMEM."""

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.tpu.page_ring import Ref


def following(sequence: Array, starts: Ref, num_seqs: Array) -> Array:
    """The first sequence from `sequence` on that has tokens in the batch; num_seqs when none has."""
    return sequence_at(sequence, jnp.int32(-1), starts, num_seqs)


def sequence_at(sequence: Array, token: Array, starts: Ref, num_seqs: Array) -> Array:
    """The first sequence from `sequence` on that has tokens, one of them beyond `token`; num_seqs when none has."""

    def passed(at: Array) -> Array:
        last = jnp.minimum(at, num_seqs - 1)
        empty = starts[last + 1] == starts[last]
        return (at < num_seqs) & (empty | (starts[last + 1] <= token))

    return lax.while_loop(passed, lambda at: at + 1, sequence)

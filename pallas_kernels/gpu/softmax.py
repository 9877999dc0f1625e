"""Softmax in base 2, as all kernels here take it: the hardware has exp2, and exp would cost a product more."""

import math

import jax.numpy as jnp
from jax import Array

from pallas_kernels.ragged import AttentionOptions

LOG2_E = math.log2(math.e)
LOWEST = -1e30  # the maximum of a row that saw nothing yet: finite, so that its distance to a hidden score is infinite
LEAST_SUM = 1e-30  # what a row that saw nothing is divided by


def logits(scores: Array, options: AttentionOptions) -> tuple[Array, float]:
    """(numbers, factor): their product is the logarithm, base 2, of a score's weight before normalisation.

    In two parts, as a kernel may find the greatest number first, and multiply where it subtracts, in one instruction.
    """
    if options.soft_cap is None:
        return scores, options.scale * LOG2_E
    return jnp.tanh(scores * (options.scale / options.soft_cap)), options.soft_cap * LOG2_E

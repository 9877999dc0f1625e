"""Programs of tests run for milliseconds, and optimizing their machine code took most of the time. What XLA does with a
program before that stays as it is."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)

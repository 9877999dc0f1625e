"""What tests of models share: these programs run for milliseconds, and optimizing their machine code took most of the
time. What XLA does with a program before that stays as it is."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)

"""On an accelerator pages fill what the weights and the largest step leave, and no more."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import attention_body
from serving.engine.limits import ExecutorLimits
from serving.engine.memory import RESERVE, bytes_for_pages, free_memory, lack_of_memory_named
from serving.errors import ConfigError
from sharding.mesh import one_device
from tests.fakes.tiny_model import tiny_llama

LIMITS = ExecutorLimits(max_num_seqs=4, max_model_len=64, page_size=16, num_pages=1, token_buckets=(4, 32))


def left(free: int, limits: ExecutorLimits = LIMITS) -> int:
    model, shape = tiny_llama()
    return bytes_for_pages(model, shape, limits, attention_body("reference"), jnp.dtype("float32"), one_device(), free)


def test_what_is_left_grows_with_what_is_free_byte_by_byte() -> None:
    assert left(2 << 30) - left(1 << 30) == 1 << 30
    assert left(1 << 30) < (1 << 30) - RESERVE


def test_a_larger_step_leaves_less() -> None:
    assert left(1 << 30, dataclasses.replace(LIMITS, token_buckets=(4, 512))) < left(1 << 30)


def test_a_device_without_room_for_one_sequence_is_refused_with_what_would_help() -> None:
    with pytest.raises(ConfigError, match="larger mesh"):
        left(RESERVE)


def test_a_device_that_does_not_tell_its_memory_asks_for_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"engine\.cache_bytes"):
        free_memory(one_device())  # a CPU keeps no account


@pytest.mark.parametrize("zeros", [jnp.zeros, np.zeros])
def test_arrays_without_room_are_refused_with_the_settings_that_make_them_smaller(zeros: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine\.cache_bytes or engine\.num_pages"), lack_of_memory_named():
        jax.block_until_ready(zeros((1 << 52,), np.uint8))


def test_other_failures_of_the_device_stay_what_they_are() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="halted"), lack_of_memory_named():
        raise jax.errors.JaxRuntimeError("INTERNAL: halted")

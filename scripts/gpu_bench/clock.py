"""Seconds of a program on the device."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def seconds_of(call: Callable[[Any], Any], state: Any, *, runs: int, queued: int) -> tuple[float, Any]:
    """(median seconds of one call, the last state), for call(state) -> state, which may donate its argument.

    Calls are queued behind one another, so that the host's share of a launch hides behind the device's work.
    """
    state = jax.block_until_ready(call(state))  # compiles, and warms up
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        for _ in range(queued):
            state = call(state)
        jax.block_until_ready(state)
        taken.append((time.perf_counter() - begin) / queued)
    return statistics.median(taken), state

"""Turns of a foreign call, with XLA's pool and with pools that are late, refuse, or do not say what they have."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import jax
import numba
import numpy as np
import pytest
from numba.core import types

from pallas_kernels.cpu.foreign_call import data, pointer, register_once, result
from pallas_kernels.cpu.parallel_for import (
    API_ERROR_DESTROY,
    API_NUM_THREADS,
    API_SCHEDULE,
    FRAME_API,
    FRAME_CONTEXT,
    parallel_for,
)

CONTEXT, ERROR = 42, 77
XlaFunction = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
Task = ctypes.CFUNCTYPE(None, ctypes.c_int64)


@numba.njit
def count_turn(frame: int, shared: int, i: int) -> None:
    pointer(shared, types.int64)[i] += 1


count_turns = parallel_for(count_turn)


class Pool:
    """A call frame and XLA's functions as the loop sees them."""

    def __init__(self, threads: int, schedule: Callable[[Callable[[], None]], int], says: bool = True) -> None:
        self._threads, self._on_task, self._says = threads, schedule, says
        self.destroyed: list[int] = []
        self._functions = [XlaFunction(f) for f in (self._destroy, self._schedule, self._num_threads)]
        self._api, self._frame = np.zeros(20, np.int64), np.zeros(20, np.int64)
        for place, function in zip((API_ERROR_DESTROY, API_SCHEDULE, API_NUM_THREADS), self._functions, strict=True):
            self._api[place // 8] = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._frame[FRAME_API // 8], self._frame[FRAME_CONTEXT // 8] = self._api.ctypes.data, CONTEXT

    def counts(self, turns: int, most_threads: int = 100) -> list[int]:
        """How often each turn was done, while this lives."""
        self.done = np.zeros(max(turns, 1), np.int64)
        count_turns(self._frame.ctypes.data, turns, self.done.ctypes.data, most_threads)
        return self.done[:turns].tolist()

    def _num_threads(self, at: int) -> int:
        size, _, context, answer = (ctypes.c_int64 * 4).from_address(at)
        assert (size, context) == (32, CONTEXT)
        ctypes.c_int64.from_address(answer).value = self._threads
        return 0 if self._says else ERROR

    def _schedule(self, at: int) -> int:
        size, _, context, task, block = (ctypes.c_int64 * 5).from_address(at)
        assert (size, context) == (40, CONTEXT)
        return self._on_task(lambda: Task(task)(block))

    def _destroy(self, at: int) -> int:
        size, _, error = (ctypes.c_int64 * 3).from_address(at)
        assert size == 24
        self.destroyed.append(error)
        return 0


def refuse(task: Callable[[], None]) -> int:
    return ERROR


def begin_at_once(task: Callable[[], None]) -> int:
    task()
    return 0


@pytest.mark.parametrize("turns", [0, 1, 2, 7, 1000])
def test_each_turn_is_done_once_whoever_does_it(turns: int) -> None:
    for schedule in (begin_at_once, lambda task: 0, refuse):
        assert Pool(4, schedule).counts(turns) == [1] * turns


def test_a_task_that_begins_late_finds_nothing_to_do() -> None:
    late: list[Callable[[], None]] = []
    pool = Pool(3, lambda task: late.append(task) or 0)
    assert pool.counts(9) == [1] * 9
    for task in late:
        task()
    assert len(late) == 2
    assert pool.done.tolist() == [1] * 9


@pytest.mark.parametrize(("threads", "turns", "most_threads", "tasks"), [(1, 9, 9, 0), (8, 3, 9, 2), (8, 9, 1, 0)])
def test_no_more_help_is_asked_for_than_there_is_to_do(threads: int, turns: int, most_threads: int, tasks: int) -> None:
    asked: list[Callable[[], None]] = []
    Pool(threads, lambda task: asked.append(task) or 0).counts(turns, most_threads)
    assert len(asked) == tasks


def test_errors_are_given_back_and_the_turns_done_alone() -> None:
    pool = Pool(3, refuse)
    assert pool.counts(5) == [1] * 5
    assert pool.destroyed == [ERROR] * 2
    pool = Pool(3, begin_at_once, says=False)
    assert pool.counts(5) == [1] * 5
    assert pool.destroyed == [ERROR]


def test_xlas_functions_stand_where_its_header_says() -> None:
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    body = re.search(r"^struct XLA_FFI_Api \{(.*?)^\};", header, re.DOTALL | re.MULTILINE)
    assert body is not None
    version = 24  # bytes of the version, between two words before it and one after
    names = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", body[1])
    places = {name: 16 + version + 8 + 8 * i for i, name in enumerate(names)}
    assert places["XLA_FFI_Error_Destroy"] == API_ERROR_DESTROY
    assert places["XLA_FFI_ThreadPool_Schedule"] == API_SCHEDULE
    assert places["XLA_FFI_ThreadPool_NumThreads"] == API_NUM_THREADS


def test_turns_are_shared_on_xlas_own_pool() -> None:
    turns = 5_000

    @numba.njit
    def body(frame: int) -> None:
        out = data(result(frame, 0))
        counts = pointer(out, types.int64)
        for i in range(turns):
            counts[i] = 0
        count_turns(frame, turns, out, turns)

    register_once("test_parallel_for", lambda: body)
    with jax.enable_x64(True):
        call = jax.jit(lambda: jax.ffi.ffi_call("test_parallel_for", jax.ShapeDtypeStruct((turns,), np.int64))())
        for _ in range(50):
            np.testing.assert_array_equal(call(), np.ones(turns, np.int64))

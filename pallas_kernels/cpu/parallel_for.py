"""A loop inside a foreign call whose turns are shared with the other threads of XLA's pool.

XLA itself runs one foreign call after another, also those that do not wait for each other. But it lets a call put tasks
on the pool that its own products use (XLA_FFI_ThreadPool_Schedule). Such a task may begin late or never: so turns are
handed out one by one, whoever called does those that nobody takes, and waits only for turns that were begun.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types

from pallas_kernels.cpu.foreign_call import WORD, address, generated, pointer, word_at

# Bytes from the begin of a call frame, and of the table of XLA's functions; as in foreign_call.py.
FRAME_API, FRAME_CONTEXT = 16, 24
API_ERROR_DESTROY, API_SCHEDULE, API_NUM_THREADS = 64, 136, 144
# Words of a loop's block of memory: it outlives the call where a task begins late.
NEXT, TURNS, DONE, HOLDERS, FRAME, SHARED = range(6)
BLOCK_WORDS = 6
LOOKS = 256  # at what others do, before the core is given to them

_malloc = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))
_yield = types.ExternalFunction("sched_yield", types.int32())

Turn = Callable[[int, int, int], None]
Loop = Callable[[int, int, int, int], None]


def parallel_for(turn: Turn) -> Loop:
    """The compiled function (frame, turns, shared, most_threads) that calls turn(frame, shared, i) for each i < turns,
    in any order and several at once, and returns when all have ended.

    `turn` is compiled and must not raise; `shared` is any number, such as the address of what the turns have in common.
    """

    @numba.njit(error_model="numpy")
    def take_turns(block: int) -> None:
        turns, frame, shared = _word(block, TURNS), _word(block, FRAME), _word(block, SHARED)
        i = add(block + NEXT * WORD, 1)
        while i < turns:
            turn(frame, shared, i)
            add(block + DONE * WORD, 1)
            i = add(block + NEXT * WORD, 1)

    @numba.njit(error_model="numpy")
    def help_out(block: int) -> None:
        take_turns(block)
        _let_go(block)

    @numba.njit(error_model="numpy")
    def loop(frame: int, turns: int, shared: int, most_threads: int) -> None:
        most = min(turns, most_threads)
        helpers = 0 if most < 2 else min(num_threads(frame), most) - 1
        if helpers < 1:
            for i in range(turns):
                turn(frame, shared, i)
            return
        block = _malloc(BLOCK_WORDS * WORD)
        words = pointer(block, types.int64)
        words[NEXT], words[DONE], words[HOLDERS] = 0, 0, helpers + 1
        words[TURNS], words[FRAME], words[SHARED] = turns, frame, shared
        for _ in range(helpers):
            if not _schedule(frame, task(help_out), block):
                _let_go(block)
        take_turns(block)
        looks = 0
        while add(block + DONE * WORD, 0) < turns:
            looks += 1
            if looks % LOOKS == 0:
                _yield()
        _let_go(block)

    return loop


@generated
def add(typing_context: Any, at: Any, number: Any) -> Any:
    """Adds to the word at an address in one go, and gives what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@generated
def task(typing_context: Any, work: Any) -> Any:
    """The address of a C function of one pointer that calls `work`, a compiled function of one int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, module = ir.IntType(64), builder.module
        made = work.dispatcher.get_compile_result(types.none(types.int64))
        context.active_code_library.add_linking_library(made.library)
        called = context.declare_function(module, made.fndesc)
        kind = ir.FunctionType(ir.VoidType(), [number])
        function = ir.Function(module, kind, name=module.get_unique_name("task"))
        function.linkage = "internal"
        inside = ir.IRBuilder(function.append_basic_block())
        context.call_conv.call_function(inside, called, types.none, (types.int64,), function.args)
        inside.ret_void()
        return builder.ptrtoint(function, number)

    return types.int64(work), generate


@generated
def _call(typing_context: Any, function: Any, arguments_at: Any) -> Any:
    """Calls one of XLA's functions: each takes the address of its arguments and gives that of an error, or 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])

    return types.int64(types.int64, types.int64), generate


@numba.njit(error_model="numpy")
def num_threads(frame: int) -> int:
    """How many threads XLA has for this call; 1 where it does not say."""
    answer = np.ones(1, np.int64)
    asked = np.array([4 * WORD, 0, word_at(frame + FRAME_CONTEXT), address(answer)])
    if not _succeeds(frame, API_NUM_THREADS, asked):
        return 1
    return answer[0]


@numba.njit(error_model="numpy")
def _schedule(frame: int, function: int, block: int) -> bool:
    asked = np.array([5 * WORD, 0, word_at(frame + FRAME_CONTEXT), function, block])
    return _succeeds(frame, API_SCHEDULE, asked)


@numba.njit(error_model="numpy")
def _succeeds(frame: int, function: int, arguments: np.ndarray) -> bool:
    api = word_at(frame + FRAME_API)
    error = _call(word_at(api + function), address(arguments))
    if error != 0:
        ended = np.array([3 * WORD, 0, error])
        _call(word_at(api + API_ERROR_DESTROY), address(ended))
    return error == 0


@numba.njit(error_model="numpy")
def _word(block: int, index: int) -> int:
    return word_at(block + index * WORD)


@numba.njit(error_model="numpy")
def _let_go(block: int) -> None:
    """Whoever is the last one to look at a block frees it."""
    if add(block + HOLDERS * WORD, -1) == 1:
        _free(block)

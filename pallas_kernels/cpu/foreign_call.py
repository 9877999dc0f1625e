"""Functions that Numba compiles, as the targets of XLA's foreign calls on a CPU.

XLA hands such a function one pointer, to a call frame whose layout is xla/ffi/api/c_api.h (jaxlib installs it in
`jax.ffi.include_dir()`). Layouts are stable within a major version, and XLA refuses a version that it does not know.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import jax
import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from pallas_kernels.cpu.machine_code import MachineCode, machine_code

API_VERSION = (0, 3)  # of XLA's foreign function interface; jaxlib 0.10.2 has 0.3, 0.11.2 has 0.4
# Bytes from the begin of each struct, on machines of 64 bits.
FRAME_EXTENSION, FRAME_ARGUMENTS, FRAME_RESULTS = 8, 72, 112
EXTENSION_KIND, EXTENSION_METADATA, METADATA_VERSION = 8, 24, 24
BUFFER_DATA, BUFFER_DIMS = 24, 40
WORD = 8
METADATA = 1  # the kind of extension that asks for the version

# As Any, because what is called has one argument fewer than what is written.
generated: Any = intrinsic(prefer_literal=True)


@generated
def pointer(typing_context: Any, address: Any, kind: Any) -> Any:
    """The number `address` as a pointer to numbers of `kind`."""
    found = types.CPointer(kind.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return found(types.int64, kind), generate


@numba.njit
def word_at(address: int) -> int:
    return pointer(address, types.int64)[0]


@numba.njit
def address(array: Any) -> Any:  # np.int64, which takes the place of an int in what is compiled
    """Of an array's numbers, to be taken where it is used: after its last mention the array is freed, and what is done
    with an address from before is no mention."""
    return np.int64(array.ctypes.data)


@numba.njit
def argument(frame: int, index: int) -> int:
    """The address of the buffer that describes an argument."""
    return word_at(word_at(frame + FRAME_ARGUMENTS) + WORD * index)


@numba.njit
def result(frame: int, index: int) -> int:
    """The address of the buffer that describes a result."""
    return word_at(word_at(frame + FRAME_RESULTS) + WORD * index)


@numba.njit
def data(buffer: int) -> int:
    return word_at(buffer + BUFFER_DATA)


@numba.njit
def dimension(buffer: int, axis: int) -> int:
    return word_at(word_at(buffer + BUFFER_DIMS) + WORD * axis)


@numba.njit
def _asks_for_version(frame: int) -> bool:
    """Whether XLA only asks which version this is; that is answered, and nothing else may be done."""
    extension = word_at(frame + FRAME_EXTENSION)
    if extension == 0 or pointer(extension + EXTENSION_KIND, types.int32)[0] != METADATA:
        return False
    version = pointer(word_at(extension + EXTENSION_METADATA) + METADATA_VERSION, types.int32)
    version[0] = API_VERSION[0]
    version[1] = API_VERSION[1]
    return True


def register_once(name: str, make_body: Callable[[], Callable[[int], None]]) -> None:
    """Makes a body the target `name`, unless there is one: compiled, or as it was kept (see machine_code.py).

    XLA takes a name once, and engines may load in several threads. The body takes the address of a call frame and must
    not raise.
    """
    with _registering:
        if name in _registered:
            return
        code = machine_code(name, lambda: _handler(make_body()))
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        jax.ffi.register_ffi_target(name, new_capsule(code.address, None, None), platform="cpu")
        _registered[name] = code


def _handler(body: Callable[[int], None]) -> Any:
    @numba.cfunc(types.int64(types.int64))
    def handler(frame: int) -> int:
        if not _asks_for_version(frame):
            body(frame)
        return 0  # no error

    return handler


_registering = threading.Lock()
_registered: dict[str, MachineCode] = {}  # XLA may call them for as long as the process lives

"""Memory that the C library keeps after it was freed."""

import ctypes
import sys


def give_back_freed_memory() -> None:
    """To the system. Threads that read a checkpoint leave their buffers in arenas of their own, which grow with every
    layer: a third of the weights' size after sixteen. Only glibc has, and needs, this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)

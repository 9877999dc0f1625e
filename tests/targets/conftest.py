"""Threads for the interpreter of GPU kernels, and compilers as users have them.

The interpreter runs each warpgroup as a program of XLA's, and XLA runs parts of those in a pool of as many threads as
there are cores. Warpgroups that wait at a barrier hold theirs; on two cores, two that wait for a third hold all, for
ever.
"""

import os
from collections.abc import Iterator

import pytest

from tests.fakes.quick_compilation import quick_compilation

os.environ.setdefault("NPROC", "16")  # read when the CPU's client starts


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Here it is the compilers that are tested, but for modules that interpret kernels on the CPU."""
    if not request.path.stem.endswith("_interpreted"):
        yield
        return
    with quick_compilation():
        yield

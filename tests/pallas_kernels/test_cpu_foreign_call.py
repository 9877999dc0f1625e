"""What Numba compiles uses addresses, which hold nothing: memory must not be read after it was given back."""

import os
import subprocess
import sys
from pathlib import Path

from pallas_kernels.cpu.registers import DEPTH

HERE = Path(__file__).parent
FREED = "255"  # the C library fills what is freed with this byte; as float32 that is no number
SHAPE = f"{DEPTH + 1}-79"  # of products: tiles are cut in both directions
PROCESSORS = ("avx2", "avx512")
# Named one by one: a name that is there no more is an error.
TESTS = (
    *(
        f"test_cpu_matmul.py::test_any_shape_is_multiplied[{held}-{SHAPE}-{rows}]"
        for held in PROCESSORS
        for rows in (2, 4, 8, 9, 17)  # each tile
    ),
    *(
        f"test_cpu_matmul.py::test_a_weight_that_lies_the_other_way_is_multiplied[{held}-{SHAPE}-{rows}]"
        for held in PROCESSORS
        for rows in (8, 17)
    ),
    "test_cpu_paged_attention.py::test_any_number_of_rows_is_taken_in_turns",
)


def test_nothing_is_read_after_it_was_freed() -> None:
    chosen = [str(HERE / test) for test in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
    done = subprocess.run(command, env={**os.environ, "MALLOC_PERTURB_": FREED}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

"""What Numba compiles uses addresses, which hold nothing: memory must not be read after it was given back."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FREED = "255"  # the C library fills what is freed with this byte; as float32 that is no number


TESTS = (
    "test_cpu_matmul.py::test_any_shape_is_multiplied",
    "test_cpu_matmul.py::test_a_weight_that_lies_the_other_way_is_multiplied",
    "test_cpu_paged_attention.py::test_any_number_of_rows_is_dealt_out_to_calls",
)
SHAPE = "avx2 and 257-47"  # of products: its tiles are cut in both directions


def test_nothing_is_read_after_it_was_freed() -> None:
    chosen = ["-k", f"({SHAPE}) or test_cpu_paged_attention", *(str(HERE / name) for name in TESTS)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
    done = subprocess.run(command, env={**os.environ, "MALLOC_PERTURB_": FREED}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]

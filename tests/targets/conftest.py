"""Threads for the interpreter of GPU kernels.

It runs each warpgroup as a program of XLA's, and XLA runs parts of those in a pool of as many threads as there are
cores. Warpgroups that wait at a barrier hold theirs; on two cores, two that wait for a third hold all, for ever.
"""

import os

os.environ.setdefault("NPROC", "16")  # read when the CPU's client starts

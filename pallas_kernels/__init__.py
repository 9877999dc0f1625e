"""Kernels: one contract each, and a body per backend.

ragged.py        the ragged batch, and what a family may ask of attention
quantization.py  numbers in 8 bits with a scale for each row
dispatch.py      which body runs, decided once at load
tuning.py        block sizes that were measured, as tables of data; tuned_bodies.py binds them to kernels
reference/       plain jnp: the truth for the others, and what a CPU runs
"""

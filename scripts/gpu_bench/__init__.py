"""Checks and times the Hopper kernels on the machine at hand. See scripts/bench_gpu.

__main__.py         the parts, each in a process of its own with a limit of time, then one table
report.py           figures, checks and notes; their table and their JSON
scale.py            sizes: the full ones, and toy ones for a CPU
clock.py            seconds of a program
ceilings.py         what the device can copy and multiply: what every figure is divided by
checks.py           every kernel against float64 numpy
batches.py          ragged batches and pages to attend to
attention_cases.py  decode, prefill and mixed batches
grouped_cases.py    experts
peers.py            torch and FlashInfer
command_buffers.py  whether XLA captures the kernels
whole_steps.py      decode steps and an offline run of the engine, with random weights
"""

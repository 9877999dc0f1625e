"""Whether XLA's command buffers (CUDA graphs) capture the kernels.

The same short step, layers of decode attention for one sequence, is compiled and timed in processes of their own: with
no command buffers, with XLA's defaults, and with all kinds of commands allowed. Looked at: the time of the step, and
which of XLA's dumped files name a command buffer. A step that is captured is faster than one that is not, and some dump
names it; where both say no, it is not captured.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.gpu_bench.report import Recorder
from scripts.gpu_bench.scale import FULL, Scale

VARIANTS = {
    "off": "--xla_gpu_enable_command_buffer=",
    "default": "",
    "all": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1",
}
NAMES = ("commandbuffer", "command_buffer")
LAYERS, QUEUED, SECONDS = 8, 50, 60.0


def run(scale: Scale, out: Recorder) -> None:
    if scale.body == "reference":
        out.figure("step, in this process", step_seconds(scale))
        out.note("no GPU: command buffers were not looked for")
        return
    for name, flags in VARIANTS.items():
        with tempfile.TemporaryDirectory() as dump:
            environment = {**os.environ, "XLA_FLAGS": f"{flags} --xla_dump_to={dump}".strip()}
            command = [sys.executable, "-m", "scripts.gpu_bench.command_buffers"]
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                out.note(f"{name}: took more than {SECONDS} s", failed=True)
                continue
            if done.returncode != 0:
                out.note(f"{name}: {done.stderr[-500:]}", failed=True)
                continue
            out.figure(f"command buffers {name}", json.loads(done.stdout.splitlines()[-1]))
            naming = sorted(path.name for path in Path(dump).iterdir() if "step" in path.name and _names_one(path))
            out.note(f"{name}: dumped files that name a command buffer: {', '.join(naming) or 'none'}")


def _names_one(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace").lower()
    # Every dump of the options has the flags' own names.
    lines = (line for line in text.splitlines() if "xla_gpu_" not in line)
    return any(name in line for line in lines for name in NAMES)


def step_seconds(scale: Scale) -> float:
    import jax
    import jax.numpy as jnp

    from pallas_kernels.dispatch import attention_body
    from pallas_kernels.ragged import AttentionOptions, Pool
    from scripts.gpu_bench.batches import filled_pool, ragged_batch
    from scripts.gpu_bench.clock import seconds_of

    heads, kv_heads = scale.heads[0]
    pages = -(-scale.contexts[0] // scale.page_size)
    batch = ragged_batch([scale.contexts[0]], [1], pages=pages, page_size=scale.page_size, width=pages)
    q, k = (jnp.ones((1, n, scale.head_dim), scale.dtype) for n in (heads, kv_heads))
    attend, options = attention_body(scale.body).attend, AttentionOptions(scale.head_dim**-0.5)

    def step(state: tuple[Pool, jax.Array]) -> tuple[Pool, jax.Array]:
        pool, x = state
        for layer in range(LAYERS):
            x, pool = attend(x, k, k, pool, layer, batch, options)
        return pool, x

    program = jax.jit(step, donate_argnums=0)
    state = filled_pool(scale, pages, LAYERS, kv_heads, scale.dtype), q
    return seconds_of(program, state, runs=scale.runs, queued=QUEUED if scale is FULL else 1)[0]


if __name__ == "__main__":
    print(json.dumps(step_seconds(FULL)))

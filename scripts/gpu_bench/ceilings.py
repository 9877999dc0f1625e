"""What this device does at best with bytes and with operations, as plain XLA reaches it."""

import jax
import jax.numpy as jnp

from scripts.gpu_bench.clock import seconds_of
from scripts.gpu_bench.report import COPY, MULTIPLY, Recorder
from scripts.gpu_bench.scale import Scale


def run(scale: Scale, out: Recorder) -> None:
    """Bytes of a copy count twice, once read and once written."""
    device = jax.devices()[0]
    out.note(f"{device.device_kind}, jax {jax.__version__}, backend {jax.default_backend()}")
    numbers = jnp.zeros(scale.copied // 4, jnp.float32)
    seconds, _ = seconds_of(jax.jit(lambda x: x + 1), numbers, runs=scale.runs, queued=scale.queued)
    out.figure(COPY, seconds, bytes=2 * numbers.nbytes)
    side = scale.multiplied
    left, right = (jax.random.normal(jax.random.key(i), (side, side), jnp.float32) for i in range(2))
    left, right = left.astype(scale.dtype), (right * side**-0.5).astype(scale.dtype)
    seconds, _ = seconds_of(jax.jit(lambda x: x @ right), left, runs=scale.runs, queued=scale.queued)
    out.figure(MULTIPLY, seconds, flops=2.0 * side**3)

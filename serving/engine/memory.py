"""How many pages fit beside the weights on an accelerator: by the largest step's own memory, not by a share."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from models.interface import Model, ModelShape
from models.stages import Stages
from pallas_kernels.dispatch import AttentionBody
from serving.engine.limits import ExecutorLimits
from serving.engine.pipeline import lower_steps
from serving.engine.placement import bytes_on_a_device
from serving.engine.sampler_rows import init_rows
from serving.engine.stage import stages_of
from serving.errors import ConfigError
from sharding.host_data import least
from sharding.mesh import everywhere

RESERVE = 512 << 20  # bytes of a device: the batch's uploads, the small programs, and what a driver keeps for itself


@contextmanager
def lack_of_memory_named() -> Iterator[None]:
    """Where an array finds no room: ConfigError, with the settings that make it smaller."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"there is no room for this deployment ({said}): lower engine.cache_bytes or engine.num_pages, "
            "engine.max_num_seqs or engine.max_num_batched_tokens, or take a larger mesh (see weft plan)",
            param="cache_bytes",
        ) from error


def free_memory(mesh: Mesh) -> int:
    """Bytes that are free on the fullest device of the mesh, whichever host it is of. All processes of a mesh must
    call it together. Raises ConfigError where a device does not tell."""
    free = []
    for device in mesh.local_devices:
        stats = device.memory_stats()
        if not stats or "bytes_limit" not in stats:
            raise ConfigError(
                f"{device} does not say how much memory it has: set engine.cache_bytes", param="cache_bytes"
            )
        free.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return least(min(free))


def bytes_for_pages(
    model: Model | Stages,
    shape: ModelShape,
    limits: ExecutorLimits,
    body: AttentionBody,
    cache_dtype: Any,
    mesh: Mesh,
    free: int,
) -> int:
    """What the largest step leaves of `free` bytes of a device on which the weights lie already.

    Compiles that step once more than serving needs, over a pool for one sequence. Raises ConfigError where nothing is
    left.
    """
    probe = dataclasses.replace(limits, num_pages=limits.table_width)
    *earlier, last = stages_of(model, shape, probe, body, cache_dtype, mesh)
    rows = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere(last.mesh)),
        jax.eval_shape(functools.partial(init_rows, limits.shards * limits.max_num_seqs, shape.vocab_size)),
    )
    largest = limits.layout_for(limits.token_buckets[-1])
    temporaries = max(_temporaries(low) for low in lower_steps(earlier, last, largest, rows))
    of_rows = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows))
    left = free - temporaries - (len(earlier) + 1) * of_rows - RESERVE  # each lane of a pipeline has its rows
    pages = max(bytes_on_a_device(stage.pool) for stage in (*earlier, last))
    if left < pages:
        raise ConfigError(
            f"beside the weights {free} bytes of a device are free, of which the largest step takes {temporaries} "
            f"and one sequence of {limits.max_model_len} tokens {pages}: "
            "take a larger mesh, or lower engine.max_model_len or engine.max_num_batched_tokens (see weft plan)",
            param="max_model_len",
        )
    return left


def _temporaries(lowered: jax.stages.Lowered) -> int:
    memory = lowered.compile().memory_analysis()
    if memory is None:
        raise ConfigError("this compiler does not tell what a step needs: set engine.cache_bytes", param="cache_bytes")
    return memory.temp_size_in_bytes

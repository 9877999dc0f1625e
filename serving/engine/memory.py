"""How many pages fit beside the weights on an accelerator: by the largest step's own memory, not by a share."""

import dataclasses
import functools
import math
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from models.interface import Model, ModelShape
from pallas_kernels.dispatch import AttentionBody
from serving.engine import steps
from serving.engine.kernels import checked_attention
from serving.engine.limits import ExecutorLimits
from serving.engine.placement import attention_on_mesh, bytes_on_a_device, pool_on_mesh, pool_spec, spec_of_a_device
from serving.engine.programs import lower_programs
from serving.engine.sampler_rows import init_rows
from serving.errors import ConfigError
from sharding.host_data import least
from sharding.mesh import everywhere

RESERVE = 512 << 20  # bytes of a device: the batch's uploads, the small programs, and what a driver keeps for itself


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
    model: Model,
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
    spec = pool_spec(shape, probe, cache_dtype, mesh)
    pool = pool_on_mesh(body, spec, mesh)
    attend = attention_on_mesh(checked_attention(body, spec_of_a_device(spec, mesh)), mesh, pool)
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    program = steps.ModelProgram(graph, tree, attend, shape.vocab_size, mesh)
    rows = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere(mesh)),
        jax.eval_shape(functools.partial(init_rows, limits.max_num_seqs, shape.vocab_size)),
    )
    largest = limits.layout_for(limits.token_buckets[-1])
    memory = (
        lower_programs(program, [largest], tuple(leaves), pool, rows)["forward", largest].compile().memory_analysis()
    )
    if memory is None:
        raise ConfigError("this compiler does not tell what a step needs: set engine.cache_bytes", param="cache_bytes")
    of_rows = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows))
    left = free - memory.temp_size_in_bytes - of_rows - RESERVE
    if left < bytes_on_a_device(pool):
        raise ConfigError(
            f"beside the weights {free} bytes of a device are free, of which the largest step takes "
            f"{memory.temp_size_in_bytes} and one sequence of {limits.max_model_len} tokens {bytes_on_a_device(pool)}: "
            "take a larger mesh, or lower engine.max_model_len or engine.max_num_batched_tokens (see weft plan)",
            param="max_model_len",
        )
    return left

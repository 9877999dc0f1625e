"""A deployment compiled for devices that are not there: its memory, its collectives, and what one device does.

The programs are the engine's own (`serving.engine.programs`), lowered from shapes: no weight is read or made.
"""

import functools
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from models.interface import Family
from models.moe import use_grouped_matmul
from models.split_experts import split_experts
from pallas_kernels.dispatch import Body, attention_body, grouped_matmul_body
from pallas_kernels.ragged import Pool, PoolSpec
from serving.engine import steps
from serving.engine.kernels import checked_attention, checked_matmul
from serving.engine.limits import ExecutorLimits
from serving.engine.placement import attention_on_mesh, bytes_on_a_device, pool_on_mesh, pool_spec, spec_of_a_device
from serving.engine.programs import lower_programs
from serving.engine.sampler_rows import init_rows
from serving.planner.collectives import Collective, collectives_of
from sharding.mesh import everywhere
from sharding.params import placement_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What one device of the mesh holds, in bytes."""

    parameters: int  # of the whole model, and not bytes
    weights: int
    experts: int  # of the weights, those of routed experts
    gathered: int  # of the weights, an embedding of which a step reads a few rows
    rows: int  # the sampler's state
    position: int  # pages of one position, all layers


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """One forward program. Bytes are of one device."""

    tokens: int
    temporaries: int
    collectives: Counter[Collective]
    seconds: float  # that it took to compile

    @property
    def sent(self) -> float:
        """Bytes that one device sends in a step."""
        return sum(collective.sent * count for collective, count in self.collectives.items())


class AbstractDeployment:
    """A model, its pages and its sampler's rows as shapes on a mesh. Raises MeshError where it cannot be split."""

    def __init__(
        self,
        family: Family,
        config: Any,
        dtype: Any,
        limits: ExecutorLimits,
        mesh: Mesh,
        body: Body,
    ) -> None:
        self.shape = family.shape(config)
        self._mesh, self._limits, self._dtype = mesh, limits, dtype
        self._body: Body = body
        model = family.build(config, dtype, seed=None, layers="stacked")
        use_grouped_matmul(model, checked_matmul(grouped_matmul_body(body)))
        split_experts(model, mesh)
        self._graph, state = nnx.split(model)
        self._parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
        self._state = placement_of(mesh, self.shape.num_heads, self.shape.num_kv_heads).abstract(state)
        self._rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere(mesh)),
            jax.eval_shape(functools.partial(init_rows, limits.max_num_seqs, self.shape.vocab_size)),
        )

    def holdings(self) -> Holdings:
        one_page = bytes_on_a_device(self._pool(1))
        return Holdings(
            parameters=self._parameters,
            weights=self._bytes_where(lambda path, axes: True),
            experts=self._bytes_where(lambda path, axes: "experts" in axes),
            gathered=self._gathered(),
            rows=sum(map(_local_bytes, jax.tree.leaves(self._rows))),
            position=one_page // self._limits.page_size,
        )

    def compile(self, num_pages: int) -> dict[int, CompiledStep]:
        """The forward program of each token bucket. Raises RuntimeError where it needs more memory than there is."""
        leaves, tree = jax.tree.flatten(self._state)
        spec, pool = self._spec(num_pages), self._pool(num_pages)
        checked = checked_attention(attention_body(self._body), spec_of_a_device(spec, self._mesh))
        attend = attention_on_mesh(checked, self._mesh, pool)
        program = steps.ModelProgram(self._graph, tree, attend, self.shape.vocab_size, self._mesh)
        layouts = [self._limits.layout_for(bucket) for bucket in self._limits.token_buckets]
        lowered = lower_programs(program, layouts, tuple(leaves), pool, self._rows)
        return {
            layout.tokens: _compiled(layout.tokens, self.shape.num_layers, lowered["forward", layout])
            for layout in layouts
        }

    def _pool(self, num_pages: int) -> Pool:
        return pool_on_mesh(attention_body(self._body), self._spec(num_pages), self._mesh)

    def _spec(self, num_pages: int) -> PoolSpec:
        return pool_spec(self.shape, replace(self._limits, num_pages=num_pages), self._dtype, self._mesh)

    def _bytes_where(self, chosen: Callable[[tuple[Any, ...], tuple[str | None, ...]], bool]) -> int:
        """Bytes on a device of the leaves whose path and logical dimensions are chosen."""
        return sum(
            _local_bytes(variable.get_value())
            for path, variable in nnx.to_flat_state(self._state)
            if chosen(path, variable.get_metadata("axes"))
        )

    def _gathered(self) -> int:
        """Of the input embedding, unless it is the output's weights too, which every step reads."""
        tied = self._bytes_where(lambda path, axes: path[0] == "head") == 0
        return 0 if tied else self._bytes_where(lambda path, axes: path[0] == "embedding")


def _compiled(tokens: int, layers: int, lowered: jax.stages.Lowered) -> CompiledStep:
    begun = time.perf_counter()
    compiled = lowered.compile()
    memory, hlo = compiled.memory_analysis(), compiled.as_text()
    if memory is None or hlo is None:
        raise RuntimeError("this compiler tells neither the memory of a program nor its text")
    found = collectives_of(hlo, layers)
    return CompiledStep(tokens, memory.temp_size_in_bytes, found, seconds=time.perf_counter() - begun)


def _local_bytes(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * jnp.dtype(leaf.dtype).itemsize

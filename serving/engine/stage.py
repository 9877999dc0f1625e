"""A model on a mesh, taken apart for its programs: one stage, or those of a pipeline."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Mesh

from models.interface import ModelShape
from models.stages import Stages, layers_of_stages
from pallas_kernels.dispatch import AttentionBody
from serving.engine import steps
from serving.engine.hidden_pages import AnyPool, WatchedPool, states_form
from serving.engine.kernels import checked_attention
from serving.engine.limits import ExecutorLimits
from serving.engine.placement import attention_on_mesh, pool_on_mesh, pool_spec, spec_of_a_device
from sharding.mesh import stage_meshes


@dataclass(frozen=True, slots=True)
class Stage:
    """What the programs of one stage are lowered from."""

    program: steps.ModelProgram
    weights: tuple[Array, ...]
    pool: AnyPool  # jax.ShapeDtypeStructs on the mesh: the pages of its layers

    @property
    def mesh(self) -> Mesh:
        return self.program.mesh

    def empty_pool(self) -> AnyPool:
        return empty_pool(self.pool)


def empty_pool(form: AnyPool) -> AnyPool:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), form)


def stages_of(
    model: Any, shape: ModelShape, limits: ExecutorLimits, attention: AttentionBody, cache_dtype: Any, mesh: Mesh
) -> list[Stage]:
    """The stages in their order; one where the mesh has no pipeline. The leaves may be jax.ShapeDtypeStructs.

    Raises MeshError where heads or layers cannot be split over the mesh.
    """
    meshes = stage_meshes(mesh)
    parts = list(model.parts) if isinstance(model, Stages) else [model]
    made = []
    for part, sub_mesh, layers in zip(parts, meshes, layers_of_stages(shape.num_layers, len(meshes)), strict=True):
        spec = pool_spec(dataclasses.replace(shape, num_layers=len(layers)), limits, cache_dtype, sub_mesh)
        pool = pool_on_mesh(attention, spec, sub_mesh)
        attend = attention_on_mesh(checked_attention(attention, spec_of_a_device(spec, sub_mesh)), sub_mesh, pool)
        watched: tuple[int, ...] = ()
        if limits.watched is not None:
            watched = limits.watched.layers
            pool = WatchedPool(pool, states_form(limits.watched, limits, sub_mesh))
        graph, state = nnx.split(part)
        leaves, tree = jax.tree.flatten(state)
        program = steps.ModelProgram(graph, tree, attend, shape.vocab_size, sub_mesh, layers.start, watched=watched)
        made.append(Stage(program, tuple(leaves), pool))
    return made

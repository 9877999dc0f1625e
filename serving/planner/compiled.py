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
from models.quantization import Products, Recipe, parameters_of, quantize_model
from models.sequence_parallel import split_sequences
from models.split_experts import Wish, split_experts
from models.stages import layers_of_stages, on_abstract_mesh
from pallas_kernels.dispatch import Body, attention_body, grouped_matmul_body
from serving.engine.hidden_pages import WatchedPool
from serving.engine.kernels import checked_matmul
from serving.engine.limits import ExecutorLimits
from serving.engine.pipeline import lower_steps
from serving.engine.placement import bytes_on_a_device
from serving.engine.sampler_rows import init_rows
from serving.engine.stage import Stage, stages_of
from serving.planner.collectives import HAND_OVER, Collective, collectives_of
from sharding.mesh import everywhere, stage_meshes
from sharding.params import placement_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What one device of the mesh holds, in bytes where nothing else is said."""

    parameters: int  # of the whole model, and not bytes
    weights: int
    experts: int  # of the weights, those of routed experts
    gathered: int  # of the weights, an embedding of which a step reads a few rows
    multiplied: int  # numbers in the weights, without those of experts and of such an embedding
    multiplied_experts: int  # numbers in the weights of routed experts
    rows: int  # the sampler's state
    position: int  # pages of one position, all layers, without hidden states that are kept with them


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
        *,
        expert_exchange: Wish = "auto",
        recipe: Recipe | None = None,
        products: Products | None = None,
        cache_dtype: Any = None,
    ) -> None:
        """recipe, products: of the weights that are kept in fewer bits; cache_dtype: of pages, by default `dtype`."""
        self.shape = family.shape(config)
        self._mesh, self._limits = mesh, limits
        self.body, self.page_dtype = attention_body(body), cache_dtype or dtype
        model = family.build(config, dtype, seed=None, layers="stacked")
        quantize_model(model, recipe, products or Products(), mesh)
        use_grouped_matmul(model, checked_matmul(grouped_matmul_body(body)))
        self._parameters = sum(parameters_of(variable) for _, variable in nnx.to_flat_state(nnx.state(model)))
        self._model = on_abstract_mesh(model, placement_of(mesh, self.shape.num_heads, self.shape.num_kv_heads))
        split_experts(self._model, mesh, expert_exchange)
        split_sequences(self._model, mesh, limits.sequence_parallel_tokens)
        last = stage_meshes(mesh)[-1]
        self._rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere(last)),
            jax.eval_shape(
                functools.partial(init_rows, limits.shards * limits.max_num_seqs, self.shape.vocab_size),
            ),
        )

    @property
    def width(self) -> int:
        """D"""
        first = self._model.parts[0] if len(stage_meshes(self._mesh)) > 1 else self._model
        return first.embedding.table.get_value().shape[1]

    def holdings(self) -> Holdings:
        """Of a device of the stage that has most weights."""
        stages = self._stages(1)
        leaves = [_Leaves(part) for part in self._model.parts] if len(stages) > 1 else [_Leaves(self._model)]
        fullest = max(leaves, key=lambda of_stage: of_stage.nbytes())
        return Holdings(
            parameters=self._parameters,
            weights=fullest.nbytes(),
            experts=fullest.nbytes(lambda path, axes: "experts" in axes),
            gathered=fullest.gathered(),
            multiplied=fullest.numbers(lambda path, axes: "experts" not in axes) - fullest.gathered_numbers(),
            multiplied_experts=fullest.numbers(lambda path, axes: "experts" in axes),
            rows=len(stages) * sum(map(_local_bytes, jax.tree.leaves(self._rows))),  # those of each lane
            position=max(map(_bytes_of_pages, stages)) // self._limits.page_size,
        )

    def compile(self, num_pages: int) -> dict[int, CompiledStep]:
        """The forward programs of each token bucket, by the tokens of all shards. Raises RuntimeError where they need
        more memory than there is."""
        *earlier, last = stages = self._stages(num_pages)
        layers = [len(part) for part in layers_of_stages(self.shape.num_layers, len(stages))]
        steps: dict[int, CompiledStep] = {}
        for bucket in self._limits.token_buckets:
            layout = self._limits.layout_for(bucket)
            lowered = list(lower_steps(earlier, last, layout, self._rows))
            parts = [_compiled(layout.all_tokens, n, low) for n, low in zip(layers, lowered, strict=True)]
            steps[layout.all_tokens] = CompiledStep(
                layout.all_tokens,
                temporaries=max(part.temporaries for part in parts),
                collectives=sum((part.collectives for part in parts), _handed_on(lowered[:-1], self._mesh)),
                seconds=sum(part.seconds for part in parts),
            )
        return steps

    def _stages(self, num_pages: int) -> list[Stage]:
        limits = replace(self._limits, num_pages=num_pages)
        return stages_of(self._model, self.shape, limits, self.body, self.page_dtype, self._mesh)


Chosen = Callable[[tuple[Any, ...], tuple[str | None, ...]], bool]
"""Of a leaf, by its path and its logical dimensions."""


class _Leaves:
    """The weights of one stage."""

    def __init__(self, model: Any) -> None:
        self._flat = nnx.to_flat_state(nnx.state(model))

    def nbytes(self, chosen: Chosen | None = None) -> int:
        """Bytes on a device of the leaves whose path and logical dimensions are chosen; without a choice, of all."""
        return sum(
            _local_bytes(variable.get_value())
            for path, variable in self._flat
            if chosen is None or chosen(path, variable.get_metadata("axes"))
        )

    def numbers(self, chosen: Chosen) -> int:
        """Of the model's parameters, those on a device in the leaves that are chosen."""
        return sum(
            parameters_of(variable) * _local_size(variable.get_value()) // math.prod(variable.get_value().shape)
            for path, variable in self._flat
            if chosen(path, variable.get_metadata("axes"))
        )

    def gathered(self) -> int:
        """Of the input embedding, unless it is the output's weights too, which every step reads."""
        return 0 if self._tied() else self.nbytes(_is_embedding)

    def gathered_numbers(self) -> int:
        return 0 if self._tied() else self.numbers(_is_embedding)

    def _tied(self) -> bool:
        return self.nbytes(lambda path, axes: path[0] == "head") == 0


def _bytes_of_pages(stage: Stage) -> int:
    return bytes_on_a_device(stage.pool.pages if isinstance(stage.pool, WatchedPool) else stage.pool)


def _is_embedding(path: tuple[Any, ...], axes: tuple[str | None, ...]) -> bool:
    return path[0] == "embedding"


def _handed_on(lowered: list[jax.stages.Lowered], mesh: Mesh) -> Counter[Collective]:
    """What the stages of a pipeline hand on: hidden states, of which each device has those of its data shard."""
    found: Counter[Collective] = Counter()
    for low in lowered:
        hidden = low.out_info[1]
        nbytes = math.prod(hidden.shape) * hidden.dtype.itemsize // mesh.shape["data"]
        found[Collective(HAND_OVER, nbytes, 2)] += 1
    return found


def _compiled(tokens: int, layers: int, lowered: jax.stages.Lowered) -> CompiledStep:
    begun = time.perf_counter()
    compiled = lowered.compile()
    memory, hlo = compiled.memory_analysis(), compiled.as_text()
    if memory is None or hlo is None:
        raise RuntimeError("this compiler tells neither the memory of a program nor its text")
    found = collectives_of(hlo, layers)
    return CompiledStep(tokens, memory.temp_size_in_bytes, found, seconds=time.perf_counter() - begun)


def _local_bytes(leaf: Any) -> int:
    return _local_size(leaf) * jnp.dtype(leaf.dtype).itemsize


def _local_size(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape))

"""A decoder in stages, each with some of its layers: what a pipeline's sub-meshes hold.

The first stage has the token vectors, the last one the last norm and the weights of the logits. Where those are the
token vectors (tied), both have them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding

from models.decoder import Decoder, Run
from models.leaves import Assembly, LeafPath, in_layer
from sharding.mesh import MeshError
from sharding.params import Placement, place_model


class Stages(nnx.Module):
    """The stages of one model, each a Decoder that begins with, or ends in, hidden states."""

    def __init__(self, parts: Sequence[Decoder]) -> None:
        self.parts = nnx.List(list(parts))


def layers_of_stages(layers: int, stages: int) -> list[range]:
    """Layers in equal runs; where they do not divide, the first stages have one more, as the last one has the logits.

    Raises MeshError where there are fewer layers than stages.
    """
    if layers < stages:
        raise MeshError(f"{layers} layers cannot be split into {stages} stages (pipeline): it can be 1 .. {layers}")
    least, more = divmod(layers, stages)
    starts = [stage * least + min(stage, more) for stage in range(stages + 1)]
    return [range(begin, end) for begin, end in pairwise(starts)]


def in_stages(model: Any, stages: int) -> Stages:
    """The model cut into stages. Its leaves may be jax.ShapeDtypeStructs."""
    if not isinstance(model, Decoder):
        raise MeshError(f"a {type(model).__name__} is no decoder of layers, so its mesh must have pipeline = 1")
    ranges = layers_of_stages(sum(len(run.part) for run in model.runs), stages)
    return Stages([_stage(model, layers, layers is ranges[0], layers is ranges[-1]) for layers in ranges])


def on_mesh(model: Any, placement: Placement) -> Any:
    """`place_model`, and in stages where the mesh has a pipeline."""
    stages = placement.stages()
    if len(stages) == 1:
        return place_model(model, placement)
    parts = in_stages(model, len(stages)).parts
    return Stages([place_model(part, stage) for part, stage in zip(parts, stages, strict=True)])


def on_abstract_mesh(model: Any, placement: Placement) -> Any:
    """A model of jax.ShapeDtypeStructs, as it would lie on the mesh: see `Placement.abstract`."""
    stages = placement.stages()

    def placed(part: Any, stage: Placement) -> Any:
        graph, state = nnx.split(part)
        return nnx.merge(graph, stage.abstract(state))

    if len(stages) == 1:
        return placed(model, placement)
    parts = in_stages(model, len(stages)).parts
    return Stages([placed(part, stage) for part, stage in zip(parts, stages, strict=True)])


class StagedAssembly:
    """As Assembly, of a model whose stages lie on the sub-meshes of a pipeline."""

    def __init__(self, model: Any, placement: Placement) -> None:
        self._stages = placement.stages()
        self._runs = model.runs
        self._parts = list(in_stages(model, len(self._stages)).parts)
        self._assemblies = [Assembly(part) for part in self._parts]

    def placement(self, path: LeafPath) -> Placement:
        """Where the leaf goes first."""
        return self._stages[self._home(path)[0]]

    def put(self, path: LeafPath, array: Array) -> None:
        stage, path = self._home(path)
        if isinstance(array.sharding, NamedSharding) and array.sharding.mesh != self._stages[stage].mesh:
            array = jax.device_put(array, NamedSharding(self._stages[stage].mesh, array.sharding.spec))
        self._assemblies[stage].put(path, array)
        last = self._parts[-1]
        if path[0] == "embedding" and last.embedding is not None:
            assert isinstance(array.sharding, NamedSharding)
            there = NamedSharding(self._stages[-1].mesh, array.sharding.spec)
            self._assemblies[-1].put(path, jax.device_put(array, there))

    def model(self) -> Stages:
        return Stages([assembly.model() for assembly in self._assemblies])

    def _home(self, path: LeafPath) -> tuple[int, LeafPath]:
        """The stage of a leaf, and its path there."""
        if not in_layer(path):
            return (0 if path[0] == "embedding" else len(self._parts) - 1), path
        stack, at = path[0], path[1]
        layer = next(run.first + at - run.part.start for run in self._runs if run.stack == stack and at in run.part)
        for stage, part in enumerate(self._parts):
            for run in part.runs:
                if run.stack == stack and run.first <= layer < run.first + len(run.part):
                    return stage, (stack, run.part.start + layer - run.first, *path[2:])
        raise AssertionError(f"layer {layer} has no stage")


def _stage(model: Decoder, layers: range, begins: bool, ends: bool) -> Decoder:
    stage = nnx.merge(*nnx.split(model))
    stage.begins, stage.ends = begins, ends
    runs = [run for whole in model.runs if (run := _within(whole, layers)) is not None]
    moved: list[Run] = []
    for stack in {run.stack for run in model.runs}:
        parts = [run.part for run in runs if run.stack == stack]
        first = parts[0].start if parts else 0
        setattr(stage, stack, _cut(getattr(model, stack), range(first, parts[-1].stop)) if parts else None)
        moved += [
            Run(stack, range(run.part.start - first, run.part.stop - first), run.first)
            for run in runs
            if run.stack == stack
        ]
    stage.runs = tuple(sorted(moved, key=lambda run: run.first))
    lacks = [] if begins or (ends and model.head is None) else ["embedding"]
    for name in lacks if ends else [*lacks, "norm", "head"]:
        setattr(stage, name, None)
    return stage


def _within(run: Run, layers: range) -> Run | None:
    begin, end = max(run.first, layers.start), min(run.first + len(run.part), layers.stop)
    if begin >= end:
        return None
    return Run(run.stack, range(run.part.start + begin - run.first, run.part.start + end - run.first), begin)


def _cut(stack: Any, part: range) -> Any:
    """Some of the layers of a stack, in either form."""
    if isinstance(stack, nnx.List):
        return nnx.List([stack[i] for i in part])

    def leaf(variable: nnx.Variable) -> nnx.Variable:
        value = variable.get_value()
        if isinstance(value, jax.ShapeDtypeStruct):
            return variable.replace(jax.ShapeDtypeStruct((len(part), *value.shape[1:]), value.dtype))
        return variable.replace(value[part.start : part.stop])

    graph, state = nnx.split(stack)
    return nnx.merge(graph, jax.tree.map(leaf, state, is_leaf=lambda x: isinstance(x, nnx.Variable)))

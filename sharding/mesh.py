"""A mesh of devices, by the sizes of its axes.

    data        sequences, with their pages; and the experts of a layer
    pipeline    the layers of a model, in stages: each has a sub-mesh with the other axes
    expert      the experts of a layer
    tensor      heads, feed-forward width, vocabulary

What has no experts is split over `expert` and `tensor` together, so that no device repeats another's work, and
repeated over `data`, whose shards have different tokens (see `rules.py`). An axis that is not named has size 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "pipeline", "expert", "tensor")


class MeshError(ValueError):
    """A mesh that these devices or this model cannot have. The message names sizes that would work."""


def make_mesh(sizes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with all of AXES over the first of `devices`, by default this process's. Raises MeshError.

    The devices may be compile-only (see `topology.devices_of`): those are taken in their order, where real ones are
    arranged so that neighbours in the mesh are neighbours in the machine.
    """
    shape = _checked(sizes)
    real = devices is None
    devices = jax.devices() if devices is None else devices
    count = math.prod(shape)
    if count > len(devices):
        raise MeshError(
            f"a mesh of {_written(sizes)} takes {count} devices and there are {len(devices)}: "
            f"the product of its axes can be {_listed(range(1, len(devices) + 1))}"
        )
    if real and jax.process_count() > 1 and sizes.get("pipeline", 1) > 1:
        raise MeshError(
            f"the stages of a pipeline hand over within one process, and these are {jax.process_count()}: "
            "pipeline must be 1, with what it has of the devices in tensor, expert or data"
        )
    if real and jax.process_count() > 1 and count != len(devices):
        raise MeshError(
            f"a mesh of {_written(sizes) or 'one device'} takes {count} devices, and these {jax.process_count()} "
            f"processes have {len(devices)}: the product of its axes must be {len(devices)}, so that each has its part"
        )
    if real and count == len(devices):
        return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    return Mesh(np.array(devices[:count]).reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def one_device() -> Mesh:
    """The mesh of a model that is not split."""
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(AXES)), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def stage_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """The sub-mesh of each stage of a pipeline, with all of AXES; the mesh itself where there is one stage."""
    stages = mesh.shape["pipeline"]
    if stages == 1:
        return (mesh,)
    at = AXES.index("pipeline")
    parts = np.split(mesh.devices, stages, axis=at)
    return tuple(Mesh(part, AXES, axis_types=(AxisType.Auto,) * len(AXES)) for part in parts)


def everywhere(mesh: Mesh) -> NamedSharding:
    """The sharding of what each device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def _checked(sizes: Mapping[str, int]) -> tuple[int, ...]:
    for axis, size in sizes.items():
        if axis not in AXES:
            raise MeshError(f"a mesh has no axis {axis!r}; it has {', '.join(AXES)}")
        if size < 1:
            raise MeshError(f"the mesh axis {axis} must be at least 1, not {size}")
    return tuple(sizes.get(axis, 1) for axis in AXES)


def _written(sizes: Mapping[str, int]) -> str:
    """tensor 8, or expert 4 x tensor 2."""
    return " x ".join(f"{axis} {sizes[axis]}" for axis in AXES if sizes.get(axis, 1) > 1)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{numbers[0]} .. {numbers[-1]}"

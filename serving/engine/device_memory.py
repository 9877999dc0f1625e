"""What a model keeps on its devices beside its programs, and giving it back for a while.

Programs take weights and pages as arguments, so they stay compiled while neither is there, and go on with others of the
same shapes.
"""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jax import Array

from serving.engine.hidden_pages import AnyPool
from serving.engine.stage import Stage, empty_pool

if TYPE_CHECKING:
    from serving.engine.weights_source import WeightsSource

KeptWeights = Literal["host", "none"]
Leaves = tuple[Array, ...]


@dataclass(slots=True)
class Resident:
    """The weights of one stage, and its pool, which each step takes and gives back."""

    weights: Leaves
    pool: AnyPool


class DeviceMemory:
    """The residents of one model, stage by stage. For the executor's own thread, with no step on the device."""

    def __init__(self, residents: Sequence[Resident], stages: Sequence[Stage]) -> None:
        self.source: WeightsSource | None = None  # where the weights came from; set by whoever read them
        self._residents = residents
        self._forms = [tuple(map(_form, stage.weights)) for stage in stages]  # not the stages: those hold the weights
        self._pools = [stage.pool for stage in stages]
        self._on_cpu = stages[0].mesh.devices.flat[0].platform == "cpu"
        self._on_host: list[list[np.ndarray]] | None = None

    @property
    def weight_bytes(self) -> int:
        """Of the weights, on all devices together."""
        return sum(_bytes(form) for stage in self._forms for form in stage)

    @property
    def pool_bytes(self) -> int:
        return sum(_bytes(leaf) for leaf in jax.tree.leaves(self._pools))

    @property
    def bytes_needed_beside(self) -> int:
        """Of the fullest device, for other weights while these are there; 0 where they are not, or on a CPU."""
        if self._on_cpu or not all(resident.weights for resident in self._residents):
            return 0
        return max(sum(_bytes(form) // form.sharding.num_devices for form in stage) for stage in self._forms)

    @property
    def has_weights(self) -> bool:
        """Whether they are on the devices, or can come back from the host."""
        return self._on_host is not None or all(resident.weights for resident in self._residents)

    def give_back(self, keep: KeptWeights) -> int:
        """Drops all pages, and the weights after a copy of them to the host, or without. Returns the bytes of the
        devices that are free then; a CPU's own copy is the same memory, and does not count."""
        if keep == "host":
            self._on_host = [[np.asarray(leaf) for leaf in resident.weights] for resident in self._residents]
        self._drop()
        if self._on_cpu:
            _trim_heap()
        return self.pool_bytes + (0 if keep == "host" and self._on_cpu else self.weight_bytes)

    def take_back(self) -> None:
        """Empty pages, and the weights from the host where they were kept there. Raises MemoryError where the devices
        have no room by now: nothing is taken then, and weights that came from elsewhere have to come again."""
        kept = self._on_host
        try:
            if kept is not None:
                self.put_weights([_placed(*stage) for stage in zip(kept, self._forms, strict=True)])
            for resident, form in zip(self._residents, self._pools, strict=True):
                resident.pool = empty_pool(form)
        except jax.errors.JaxRuntimeError as error:
            self._drop()
            self._on_host = kept
            raise MemoryError(str(error)) from error

    def _drop(self) -> None:
        for resident in self._residents:
            resident.weights, resident.pool = (), _nothing()

    def put_weights(self, stages: Sequence[Leaves]) -> None:
        """Others in place of those that are there. Raises ValueError where a form differs, before any is taken."""
        for leaves, forms in zip(stages, self._forms, strict=True):
            for leaf, form in zip(leaves, forms, strict=True):
                if _form(leaf) != form:
                    raise ValueError(f"a leaf is {_form(leaf)}, and the programs take {form}")
        self._on_host = None
        for resident, leaves in zip(self._residents, stages, strict=True):
            resident.weights = leaves


def _placed(leaves: Sequence[np.ndarray], forms: Sequence[jax.ShapeDtypeStruct]) -> Leaves:
    return tuple(jax.device_put(leaf, form.sharding) for leaf, form in zip(leaves, forms, strict=True))


def _form(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _bytes(leaf: Any) -> int:
    """On all devices together."""
    shard = leaf.sharding.shard_shape(leaf.shape)
    return int(np.prod(shard)) * leaf.dtype.itemsize * leaf.sharding.num_devices


def _trim_heap() -> None:
    """The C library keeps what XLA frees (see `device.keep_freed_memory`): here the system gets it back."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _nothing() -> Any:
    return ()

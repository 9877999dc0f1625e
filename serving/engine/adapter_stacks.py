"""The adapters of a model on its devices: a fixed number of slots, each written anew when another adapter takes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from models import checkpoint
from models.adapted_array import AdapterProduct
from models.adapter_files import AdapterFiles, check_adapter, read_adapter
from models.adapters import AdapterError, AdapterLayout, lay_out
from pallas_kernels.dispatch import Body
from pallas_kernels.grouped import GroupedMatmul
from serving.config import Deployment
from serving.errors import ConfigError
from sharding.params import Placement

Leaves = tuple[Array, ...]

_RANKS: dict[Body, int] = {"gpu": 64}  # what R has to be a multiple of; elsewhere it may be any


class AdapterStacks:
    """`read` and `place` may run on any thread; `write` on the one that owns the executor."""

    def __init__(self, layout: AdapterLayout, product: AdapterProduct, placement: Placement) -> None:
        self.layout = layout
        self.product = product
        self._placement = placement
        self.arrays = layout.empty(placement)
        one = self.place(layout.on_host({}))
        self._write = (
            jax.jit(
                layout.written,
                donate_argnums=0,
                out_shardings=tuple(array.sharding for array in self.arrays),
            )
            .lower(self.arrays, one, jax.ShapeDtypeStruct((), jnp.int32))
            .compile()
        )

    @property
    def slots(self) -> int:
        return self.layout.slots

    @property
    def nbytes(self) -> int:
        """On all devices together, a replicated part once."""
        return sum(array.nbytes for array in self.arrays)

    def read(self, folder: Path) -> AdapterFiles:
        """Raises AdapterError."""
        return read_adapter(folder, self.layout)

    def place(self, arrays: Sequence[np.ndarray]) -> Leaves:
        """One adapter on the devices, beside the slots."""
        return self.layout.placed(arrays, self._placement)

    def write(self, slot: int, one: Leaves) -> None:
        """Starts the copy of `one` into a slot that no live sequence has; steps dispatched later see it."""
        self.arrays = self._write(self.arrays, one, np.int32(slot))


def stacks_for(
    deployment: Deployment, planned: Any, placement: Placement, dtype: Any, matmul: GroupedMatmul, body: Body
) -> AdapterStacks | None:
    """Empty slots for the adapters of a deployment; None where it has none. `planned` is the model with its shapes
    alone, as the checkpoint has them. Raises ConfigError."""
    config = deployment.adapters
    if not config.slots:
        return None
    if deployment.cluster.processes > 1:
        raise ConfigError(
            "adapters.slots is above 0, and adapters are not offered where cluster.processes is above 1: only steps "
            "are sent to the other hosts",
            param="slots",
        )
    try:
        layout = lay_out(
            planned,
            checkpoint.hub_names(deployment.model.checkpoint),
            slots=config.slots,
            max_rank=config.max_rank,
            dtype=dtype,
            wanted=config.targets,
            multiple=_RANKS.get(body, 1),
        )
    except AdapterError as error:
        raise ConfigError(f"adapters.targets: {error}", param="targets") from error
    for adapter, folder in config.named.items():  # here, and not when the first client asks for it
        try:
            check_adapter(folder, layout)
        except AdapterError as error:
            raise ConfigError(f"adapters.named.{adapter}: {error}", param="named") from error
    return AdapterStacks(layout, AdapterProduct(placement.mesh, matmul), placement)

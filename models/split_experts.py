"""Routed experts over a mesh: each device runs its own experts, or its columns of them, and one sum joins the devices.

Every device has every token, so nothing is sent before the experts run: a device picks the rows of its experts, and
work follows the rows. What is sent is the sum of the layer, as after any other MLP.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from models.moe import ApplyExperts, ExpertMLPs, Gate, RoutedExperts, Routing, apply_experts
from pallas_kernels.grouped import ExpertWeights, GroupedMatmul, QuantizedExperts
from sharding.rules import MODEL_AXES, spec_of

GATE_UP = ("experts", None, "model", "expert_mlp")
DOWN = ("experts", "expert_mlp", "model")
_WHOLE = PartitionSpec()


def split_experts(model: Any, mesh: Mesh) -> None:
    """From here on every RoutedExperts of the model runs split over the mesh, as its weights are placed there (see
    sharding/rules.py); decided once, at load. Does nothing on one device."""
    if mesh.devices.size == 1:
        return
    for _, module in nnx.iter_modules(model):
        if isinstance(module, RoutedExperts):
            module.apply = experts_on_mesh(mesh)


def experts_on_mesh(mesh: Mesh) -> ApplyExperts:
    """`apply_experts` for weights that are split over `mesh`. The sum of the devices is in x's dtype."""

    def apply(
        x: Array, routing: Routing, mlps: ExpertMLPs, num_experts: int, gate: Gate, matmul: GroupedMatmul
    ) -> tuple[Array, Array]:
        def local(x: Array, routing: Routing, mlps: ExpertMLPs) -> tuple[Array, Array]:
            here = num_experts // mesh.shape["expert"]
            ids = routing.experts - lax.axis_index("expert") * here
            if mlps.down_bias is not None:
                # Devices that share an expert's columns each add a part of its sum: one of them adds the bias.
                bias = jnp.where(lax.axis_index("tensor") == 0, mlps.down_bias, 0)
                mlps = mlps._replace(down_bias=bias)
            out, load = apply_experts(x, routing._replace(experts=ids), mlps, here, gate, matmul)
            return lax.psum(out, MODEL_AXES), load

        specs: tuple[Any, ...] = (
            _specs(mlps.gate_up, GATE_UP),
            _specs(mlps.down, DOWN),
            None if mlps.gate_up_bias is None else spec_of(("experts", None, "expert_mlp")),
            None if mlps.down_bias is None else spec_of(("experts", "model")),
        )
        weights = ExpertMLPs(*specs)
        split = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(_WHOLE, _WHOLE, weights),
            out_specs=(_WHOLE, spec_of(("experts",))),
            check_vma=False,
        )
        return split(x, routing, mlps)

    return apply


def _specs(weights: ExpertWeights, names: tuple[str | None, ...]) -> Any:
    """Of weights, and of their scales: those of a whole column have no dimension of rows."""
    if not isinstance(weights, QuantizedExperts):
        return spec_of(names)
    whole_column = weights.scales.ndim < weights.values.ndim
    of_scales = (*names[:-2], names[-1]) if whole_column else names
    return QuantizedExperts(spec_of(names), spec_of(of_scales))  # pyright: ignore[reportArgumentType]

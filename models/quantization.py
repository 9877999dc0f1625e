"""Which weights of a model are kept in fewer bits, and how: decided on its shapes, before anything is loaded.

A weight that may be is declared with the dimensions that its products sum over (`layers.WeightInit.weight`). It becomes
a `QuantizedWeight`: a module in the place of its nnx.Param, whose leaves are sharded, stacked, stored and loaded like
any other. Token vectors, the logits' own weights, routers, norms and biases stay as they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from models.leaves import LeafPath
from models.quantization_rounding import rounded
from models.quantized_array import STORED, Activations, Kind, QuantizedArray, WeightForm
from sharding.rules import split_of

Quantization = Literal["int8", "int4", "fp8"]  # what float weights can be rounded to while they are loaded
GROUP = 128  # rows that share a scale in int4
LEAST_GROUP = 8
LEAVES = ("values", "scales", "zeros", "groups")  # of a QuantizedWeight


class QuantizationError(ValueError):
    """A model, a mesh or a chip that this quantization does not go with. The message says what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How weights are kept, before it is known of which shape."""

    kind: Kind
    group: int | None = None  # rows that share a scale; None: all of a column
    zeros: bool = False  # groups say which number stands for 0
    reordered: bool = False  # rows say which group they are of


Recipe = Callable[[LeafPath], Scheme | None]
"""Of a weight, by its path in a model that holds its layers as a list; None: it stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """How quantized weights are multiplied."""

    blocked: bool = False  # as a CPU wants it (see quantized_array.py)
    activations: Activations | None = None
    keeps_mxfp4: bool = False  # in 4 bits; else those weights are widened as they are read


def at_load(quantization: Quantization, group: int | None = None) -> Recipe:
    """Every weight that may be. `group` is for int4 alone. Raises QuantizationError."""
    if quantization not in get_args(Quantization):
        raise QuantizationError(f"weights are quantized to {', '.join(get_args(Quantization))}, not {quantization!r}")
    if group is not None and (quantization != "int4" or group < LEAST_GROUP):
        raise QuantizationError(f"a group is for int4, of at least {LEAST_GROUP} rows, not {group} of {quantization}")
    scheme = Scheme(kind=quantization, group=(group or GROUP) if quantization == "int4" else None)
    return lambda path: scheme


class QuantizedWeight(nnx.Module):
    """A weight in fewer bits. `weight[...]` is a QuantizedArray, where an nnx.Param would give an array."""

    def __init__(self, form: WeightForm, leaves: dict[str, nnx.Param]) -> None:
        self.values = leaves["values"]
        self.scales = leaves["scales"]
        self.zeros = leaves.get("zeros")
        self.groups = leaves.get("groups")
        self.form = form

    def __getitem__(self, index: Any) -> QuantizedArray:
        if index is not ...:
            raise TypeError("a quantized weight is taken whole, as weight[...], and then indexed")
        zeros = None if self.zeros is None else self.zeros[...]
        groups = None if self.groups is None else self.groups[...]
        return QuantizedArray(self.values[...], self.scales[...], zeros, groups, self.form)


def quantize_model(model: Any, recipe: Recipe | None, products: Products, mesh: Mesh | None = None) -> None:
    """Puts QuantizedWeights in the place of the model's weights that `recipe` names, in either form of its layers; None
    names none.

    A weight that is a jax.ShapeDtypeStruct stays one; another is rounded. Raises QuantizationError for a weight that
    cannot be kept so, or not on this mesh, and for activations that no weight would be multiplied with.
    """
    if recipe is None:
        if products.activations is not None:
            raise QuantizationError(
                f"activations in {products.activations} go with weights in {products.activations}, and these are kept "
                "in full: ask for both, or for none"
            )
        return
    for path, module in list(nnx.iter_modules(model)):
        for name, param in list(vars(module).items()):
            if isinstance(param, nnx.Param) and (form := _form(param, (*path, name), recipe, products, mesh)):
                setattr(module, name, QuantizedWeight(form, _leaves(param, form)))


def _form(param: nnx.Param, path: LeafPath, recipe: Recipe, products: Products, mesh: Mesh | None) -> WeightForm | None:
    """None for a weight that stays as it is."""
    summed, names = param.get_metadata().get("summed", ()), param.get_metadata("axes")
    if not summed:
        return None
    shape = tuple(param.get_value().shape)
    stacked = names[0] == "layers"
    named = ".".join(map(str, path))
    paths = [(path[0], layer, *path[1:]) for layer in range(shape[0])] if stacked else [path]
    schemes = {recipe(one) for one in paths}
    if len(schemes) > 1:
        raise QuantizationError(f"{named} is quantized in some layers and not, or otherwise, in others")
    scheme = schemes.pop()
    if scheme is None:
        return None
    if stacked:
        shape, names = shape[1:], names[1:]
    form = WeightForm(
        kind=scheme.kind,
        shape=shape,
        names=names,
        summed=summed,
        group=scheme.group,
        zeros=scheme.zeros,
        reordered=scheme.reordered,
        blocked=products.blocked,
    )
    form = _fitted(form, named, mesh)
    if products.activations is not None:
        form = _with_activations(form, named, products.activations)
    return form


def _fitted(form: WeightForm, named: str, mesh: Mesh | None) -> WeightForm:
    """With groups that neither the last summed dimension nor a device's part of it cuts through."""
    if form.zeros and "experts" in form.names:
        form = replace(form, kind="int8", zeros=False)  # grouped matmuls know no zeros: they come off the numbers
    last = form.summed[-1]
    size, parts = form.shape[last], 1 if mesh is None else split_of(mesh, form.names[last])
    if form.reordered:
        if form.summed[0] != 0 or "experts" in form.names:
            raise QuantizationError(f"{named}: rows that name their groups (desc_act) are not offered for this weight")
        return form
    if form.packed and size % (2 * parts):
        raise QuantizationError(f"{named}: {size} rows of 4 bits cannot be split {parts} ways: an even part is needed")
    if form.group is None:
        return form
    group = math.gcd(form.group, size // parts)
    if size % parts or group < LEAST_GROUP:
        raise QuantizationError(
            f"{named}: {size} rows cannot be split {parts} ways in groups of {form.group}, or of a divisor that is at "
            f"least {LEAST_GROUP}"
        )
    return replace(form, group=group)


def _with_activations(form: WeightForm, named: str, activations: Activations) -> WeightForm:
    if form.kind != activations or form.group is not None or form.zeros:
        raise QuantizationError(
            f"activations in {activations} go with weights in {activations} with one scale a column, and {named} is "
            f"kept in {form.kind}" + ("" if form.group is None else f" in groups of {form.group}")
        )
    return replace(form, activations=activations)


def leaf_shapes(form: WeightForm) -> dict[str, tuple[tuple[int, ...], Any, tuple[str | None, ...]]]:
    """Shape, dtype and dimension names of each leaf, without a stack's L."""
    last = form.summed[-1]
    values = tuple(size // 2 if form.packed and dim == last else size for dim, size in enumerate(form.shape))
    scales, names = list(form.shape), list(form.names)
    for dim in form.summed:
        if form.group is None or form.reordered:
            scales[dim], names[dim] = 1, None
    if form.reordered:
        assert form.group is not None
        rows = math.prod(form.shape[dim] for dim in form.summed)
        scales[last] = -(-rows // form.group)
    elif form.group is not None:
        scales[last] //= form.group
    shared = (tuple(scales), tuple(names))
    shapes = {"values": (values, STORED[form.kind], form.names), "scales": (shared[0], jnp.float32, shared[1])}
    if form.zeros:
        shapes["zeros"] = (shared[0], jnp.int8 if form.packed else jnp.int16, shared[1])
    if form.reordered:
        rows_shape = tuple(form.shape[dim] for dim in form.summed)
        shapes["groups"] = (rows_shape, jnp.int32, tuple(form.names[dim] for dim in form.summed))
    return shapes


def parameters_of(variable: nnx.Variable) -> int:
    """How many of the model's parameters a leaf holds: none in what belongs to others, two in some bytes."""
    form: WeightForm | None = variable.get_metadata().get("form")
    size = math.prod(variable.get_value().shape)
    if form is None:
        return size
    if variable.get_metadata("role") != "values":
        return 0
    return 2 * size if form.packed else size


def _leaves(param: nnx.Param, form: WeightForm) -> dict[str, nnx.Param]:
    value, stacked = param.get_value(), param.get_metadata("axes")[0] == "layers"
    arrays = None if isinstance(value, jax.ShapeDtypeStruct) else rounded(np.asarray(value), form)
    leaves = {}
    for role, (shape, dtype, names) in leaf_shapes(form).items():
        if stacked:
            shape, names = (value.shape[0], *shape), ("layers", *names)
        held = jax.ShapeDtypeStruct(shape, dtype) if arrays is None else jax.device_put(arrays[role])
        leaves[role] = nnx.Param(held, axes=names, form=form, role=role)
    return leaves

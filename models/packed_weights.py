"""Weights that a checkpoint has in fewer bits already, from its own layout to the form that a model keeps them in.

A layout (see packed_layouts.py) gives a weight as the hub's library would write it, [..., out, in], a number in each
byte; here they go to their places in the leaves, by the same table as weights in full (see hub.py).
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from models.errors import CheckpointError
from models.hub import Tensor
from models.quantization import Scheme
from models.quantization_rounding import Arrays, packed
from models.quantized_array import WeightForm
from models.tensor_files import TensorFiles

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight (values - zeros) * scales, where each group of columns of [out, in] has its own zeros and scales."""

    values: np.ndarray  # [..., out, in] int8, float8_e4m3fn, or the four bits of E2M1 in uint8
    scales: np.ndarray  # [..., out, groups] float32
    zeros: np.ndarray | None = None  # [..., out, groups] int16
    groups: np.ndarray | None = None  # [in] int32: the group of each column, where a group's do not lie together


class PartForm(NamedTuple):
    """What one of the tensors that stand for a weight may be."""

    dtypes: tuple[str, ...]  # as the files name them
    shapes: tuple[tuple[int, ...], ...]


class Parts(NamedTuple):
    """The tensors that stand for a weight, and what may be in the files beside them."""

    needed: tuple[str, ...]
    unused: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()  # biases: zero, unless the model has them too


class PackedLayout(Protocol):
    """One way to write weights in fewer bits, as a checkpoint's quantization_config says."""

    def scheme(self, name: str) -> Scheme | None:
        """Of the weight that the family calls `name`; None where it is there in full."""
        ...

    def parts(self, name: str) -> Parts: ...

    def forms(self, name: str, shape: tuple[int, ...]) -> dict[str, PartForm]:
        """Of the tensors that stand for a weight of that shape."""
        ...

    def shape(self, files: TensorFiles, name: str) -> tuple[int, ...]: ...

    def codes(self, files: TensorFiles, name: str) -> Codes: ...


class PackedFiles:
    """`files` with each packed weight as if it were one tensor. Raises CheckpointError where a part is missing, or of
    another form than the layout gives to a weight of that shape."""

    def __init__(
        self,
        files: TensorFiles,
        layout: PackedLayout,
        weights: Mapping[str, tuple[int, ...]],
        known: Container[str] = (),
    ) -> None:
        """`weights` are the names, with the shapes that config.json gives them; `known` all that the model has."""
        self._files, self._layout, self._names = files, layout, frozenset(weights)
        self._parts: set[str] = set()
        for name, shape in weights.items():
            parts = layout.parts(name)
            for part in parts.needed:
                if part not in files:
                    raise CheckpointError(f"tensor {part} is missing; quantization_config says that {name} is in it")
            blank = [part for part in parts.blank if part in files and part not in known]
            for part in blank:
                _check_blank(files, part)
            self._parts |= {*parts.needed, *blank, *(part for part in parts.unused if part in files)}
            for part, form in layout.forms(name, shape).items():
                _check_part(files, part, form)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._files if name not in self._parts)
        yield from sorted(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names or (name in self._files and name not in self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._layout.shape(self._files, name) if name in self._names else self._files.shape(name)

    def nbytes(self, name: str) -> int:
        """In the file."""
        if name not in self._names:
            return self._files.nbytes(name)
        return sum(_nbytes(self._files, part) for part in self._layout.parts(name).needed)

    def rows(self, name: str, begin: int, end: int) -> np.ndarray:
        return self._files.rows(name, begin, end)

    def codes(self, name: str) -> Codes:
        return self._layout.codes(self._files, name)

    def group(self, name: str) -> int | None:
        """Columns of [out, in] that share a scale; None: all of them."""
        scheme = self._layout.scheme(name)
        assert scheme is not None
        return scheme.group


def _check_blank(files: TensorFiles, part: str) -> None:
    if files.rows(part, 0, files.shape(part)[0]).any():
        raise CheckpointError(f"tensor {part} is not zero, and config.json describes no such weight")


def _check_part(files: TensorFiles, part: str, form: PartForm) -> None:
    if files.dtype(part) not in form.dtypes:
        raise CheckpointError(f"tensor {part} is {files.dtype(part)}; it must be {' or '.join(form.dtypes)}")
    if files.shape(part) not in form.shapes:
        right = " or ".join(str(list(shape)) for shape in form.shapes)
        raise CheckpointError(
            f"tensor {part} has shape {list(files.shape(part))}; by config.json and its quantization_config it must be "
            f"{right}"
        )


def assembled(form: WeightForm, sources: Sequence[tuple[str, int, Tensor]], files: PackedFiles) -> Arrays:
    """The leaves of one weight from the tensors that make it up: (name, first row of it, where it goes)."""
    parts: Arrays = {}
    groups: np.ndarray | None = None
    for name, first, tensor in sources:
        each = files.group(name)
        codes = _fitted(files.codes(name), form, name, each)
        rows = slice(first, first + tensor.shape[0])
        inner = _inner_dims(tensor)
        if "values" not in parts:
            parts["values"] = np.zeros(form.shape, codes.values.dtype)
        _put(parts["values"], tensor, tensor.split, codes.values[rows])
        for role, table in (("scales", codes.scales), ("zeros", codes.zeros)):
            if table is None:
                continue
            dims = _group_dims(inner, form, table.shape[-1])
            split = (*tensor.split[: len(tensor.split) - len(inner)], *dims)
            if role not in parts:
                parts[role] = np.zeros(_table_shape(form, table.shape[-1]), table.dtype)
            if not form.reordered and form.group is not None:
                table = _at(table, np.arange(math.prod(dims)) * form.group, each)
            _put(parts[role], tensor, split, table[rows])
        if codes.groups is not None:
            if groups is not None and (groups != codes.groups).any():
                raise CheckpointError(f"tensor {name} orders its rows otherwise than what is fused with it (g_idx)")
            groups = codes.groups
            parts["groups"] = groups.reshape(inner).astype(np.int32)
    if "zeros" in parts:
        parts["zeros"] = parts["zeros"].astype(np.int8 if form.packed else np.int16)
    if form.packed:
        parts["values"] = packed(parts["values"], form.summed[-1])
    return parts


def _at(table: np.ndarray, columns: np.ndarray, each: int | None) -> np.ndarray:
    """What a table of groups says of these columns, where so many share a group; the last one may have fewer."""
    return table[..., columns // each] if each else table[..., np.zeros_like(columns)]


def _fitted(codes: Codes, form: WeightForm, name: str, each: int | None) -> Codes:
    """Without zeros where the form has none: they are 0, or come off the numbers, which then take a byte."""
    if codes.zeros is None or form.zeros:
        return codes
    if not codes.zeros.any():
        return Codes(codes.values, codes.scales, None, codes.groups)
    if form.kind != "int8" or codes.groups is not None:
        raise CheckpointError(f"tensor {name} has zero points, and quantization_config says that it is symmetric")
    spread = _at(codes.zeros, np.arange(codes.values.shape[-1]), each)
    shifted = codes.values.astype(np.int16) - spread
    if shifted.min() < -128 or shifted.max() > 127:
        raise CheckpointError(
            f"tensor {name} has numbers of 8 bits and zero points that take them beyond a byte; where zero points come "
            "off the numbers, as in experts, 4 bits are offered, or 8 bits without them"
        )
    return Codes(shifted.astype(np.int8), codes.scales)


def _inner_dims(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions that the tensor's last one, `in`, is made of."""
    count = 1
    while math.prod(tensor.split[-count:]) != tensor.shape[-1]:
        count += 1
    return tensor.split[-count:]


def _group_dims(inner: tuple[int, ...], form: WeightForm, groups: int) -> tuple[int, ...]:
    """What becomes of `in` in a table of groups."""
    if form.reordered:
        return (*(1,) * (len(inner) - 1), groups)
    if form.group is None:
        return (1,) * len(inner)
    return (*inner[:-1], inner[-1] // form.group)


def _table_shape(form: WeightForm, groups: int) -> tuple[int, ...]:
    inner = tuple(form.shape[dim] for dim in form.summed)
    shape = list(form.shape)
    for dim, size in zip(form.summed, _group_dims(inner, form, groups), strict=True):
        shape[dim] = size
    return tuple(shape)


def _put(leaf: np.ndarray, tensor: Tensor, split: tuple[int, ...], values: np.ndarray) -> None:
    """leaf's part = values, in the leaf's order."""
    leaf[tensor.part].transpose(np.argsort(tensor.order))[...] = values.reshape(split)


def _nbytes(files: TensorFiles, name: str) -> int:
    dtype = files.dtype(name)
    if dtype not in SIZES:
        raise CheckpointError(f"tensor {name} is {dtype}; it must be one of {', '.join(SIZES)}")
    return SIZES[dtype] * math.prod(files.shape(name))

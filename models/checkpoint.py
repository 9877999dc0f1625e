"""A checkpoint directory in the hub's layout -> a model on the device.

Each leaf is assembled on the host, its tensors converted and written straight to their places, and then moved to the
device before the next is begun: beside the device's weights there is one leaf and a few rows of a tensor in memory. A
CPU device takes the host's buffer over, so that there the weights exist once.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.errors import CheckpointError
from models.fields import Fields
from models.hub import Tensor, Tensors
from models.interface import Family, LayerForm, Model, ModelShape
from models.registry import FAMILIES, family_of
from models.rope import use_max_length
from models.tensor_files import TensorFiles, read_json

CHUNK_BYTES = 8 << 20  # of a tensor read at once
ALIGNMENT = 64  # bytes; the CPU device takes over a host buffer that is aligned so

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
Place = Callable[[np.ndarray, tuple[str | None, ...]], Array]  # (leaf, logical axes) -> the same on its devices


def to_default_device(leaf: np.ndarray, axes: tuple[str | None, ...]) -> Array:
    return jax.device_put(leaf)


def load(
    directory: Path,
    dtype: Any,
    *,
    progress: Progress | None = None,
    place: Place = to_default_device,
    layers: LayerForm = "stacked",
    max_length: int | None = None,
    families: Sequence[Family] = FAMILIES,
) -> tuple[Model, ModelShape, Any]:
    """The model with its weights in `dtype`, the numbers that the engine needs, and the family's config.

    max_length: tokens of the longest sequence that it will see; without it, all that the checkpoint was made for.
    A rope that depends on it is chosen by it (see rope.LongRope).

    Raises CheckpointError for what is missing, unexpected, malformed or not offered, before any weight is read;
    ValueError for a dtype other than float32 and bfloat16.
    """
    if jnp.dtype(dtype) not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        raise ValueError(f"weights cannot be loaded as {jnp.dtype(dtype)}; float32 and bfloat16 are offered")
    family, config = _parse(directory, families)
    model = family.build(config, dtype, seed=None, layers=layers)
    if max_length is not None:
        use_max_length(model, max_length)
    graph, state = nnx.split(model)
    with TensorFiles(directory) as files:
        table = family.tensors(config)
        total = _check(files, table)
        meter = _Meter(progress, total)
        by_leaf = _by_leaf(table, layers)
        loaded = []
        for path, leaf in nnx.to_flat_state(state):
            values = _aligned(leaf.get_value().shape, leaf.get_value().dtype)
            for name, first, tensor, index in by_leaf[path]:
                _read(files, name, first, tensor, values[index], meter)
            placed = place(values, leaf.get_metadata("axes"))
            del values
            loaded.append((path, leaf.replace(jax.block_until_ready(placed))))
    return nnx.merge(graph, nnx.from_flat_state(loaded)), family.shape(config), config


def abstract(
    directory: Path, dtype: Any, *, layers: LayerForm = "stacked", families: Sequence[Family] = FAMILIES
) -> tuple[Model, ModelShape, Any]:
    """As `load`, from config.json alone: each leaf is a jax.ShapeDtypeStruct."""
    family, config = _parse(directory, families)
    return family.build(config, dtype, seed=None, layers=layers), family.shape(config), config


def _parse(directory: Path, families: Sequence[Family]) -> tuple[Family, Any]:
    path = directory / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: it must be a JSON object")
    if "quantization_config" in Fields(config):
        raise CheckpointError(f"{path}: quantization_config is there; only F32, F16 and BF16 weights are offered")
    family = family_of(config, families)
    return family, family.parse(config)


def _check(files: TensorFiles, table: Tensors) -> int:
    """The bytes to read. Raises CheckpointError for the first tensor that does not fit the family's table."""
    total = 0
    for name in sorted(set(files) - set(table)):
        raise CheckpointError(f"tensor {name} is unexpected: config.json describes no such weight")
    for name, tensor in table.items():
        if tensor is None:
            continue
        if name not in files:
            raise CheckpointError(f"tensor {name} is missing; config.json asks for one of shape {list(tensor.shape)}")
        if files.shape(name) != tensor.shape:
            found, right = list(files.shape(name)), list(tensor.shape)
            raise CheckpointError(f"tensor {name} has shape {found}; by config.json it must be {right}")
        total += files.nbytes(name)
    return total


def _by_leaf(
    table: Tensors, layers: LayerForm
) -> dict[tuple[Any, ...], list[tuple[str, int, Tensor, tuple[Any, ...]]]]:
    """Leaf path -> what makes it up: name, first row in the file, tensor, and its index into the leaf."""
    leaves: dict[tuple[Any, ...], list[tuple[str, int, Tensor, tuple[Any, ...]]]] = {}
    for name, entry in table.items():
        first = 0
        for tensor in () if entry is None else entry.parts:
            path, index = tensor.path, tensor.part
            if tensor.layer is not None and layers == "list":
                path = (path[0], tensor.layer, *path[1:])
            elif tensor.layer is not None:
                index = (tensor.layer, *index)
            leaves.setdefault(path, []).append((name, first, tensor, index))
            first += tensor.shape[0]
    return leaves


def _aligned(shape: Iterable[int], dtype: Any) -> np.ndarray:
    """Uninitialised."""
    shape = tuple(shape)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _read(files: TensorFiles, name: str, first: int, tensor: Tensor, leaf: np.ndarray, meter: "_Meter") -> None:
    """leaf = the file's rows from `first` on in the leaf's order and dtype, a chunk of the file at a time."""
    target = leaf.transpose(np.argsort(tensor.order))  # a view of the leaf in the order of the file
    rows = tensor.shape[0] // tensor.split[0]
    nbytes = files.nbytes(name) // files.shape(name)[0] * rows
    step = max(1, CHUNK_BYTES // max(1, nbytes))
    for begin in range(0, tensor.split[0], step):
        end = min(begin + step, tensor.split[0])
        values = files.rows(name, first + begin * rows, first + end * rows)
        target[begin:end] = values.reshape(end - begin, *tensor.split[1:])
        meter.add((end - begin) * nbytes)


class _Meter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)

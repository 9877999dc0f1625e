"""The weights of a checkpoint in the hub's layout, leaf by leaf: tensors are written straight to their places.

Beside a leaf there are a few rows of a tensor in memory. A CPU device takes the host's buffer over, so that there the
weights exist once.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jax import Array

from models.errors import CheckpointError
from models.hub import Tensor, Tensors
from models.leaves import Leaf, LeafPath, Meter, Progress
from models.mxfp4 import UnpackedFiles
from models.packed_weights import PackedFiles, PackedLayout, assembled
from models.quantization_rounding import Arrays, rounded
from models.tensor_files import TensorFiles
from sharding.params import Placement

AnyFiles = TensorFiles | UnpackedFiles | PackedFiles

CHUNK_BYTES = 8 << 20  # of a tensor read at once
# Models for embedding are saved without what gives logits, and then the hub's names do not say inside of what they lie.
_INSIDE, _BARE = "model.", "embed_tokens.weight"
_HEAD = "lm_head.weight"
ALIGNMENT = 64  # bytes; the CPU device takes over a host buffer that is aligned so


class HubWeights:
    """Those in `files`. Raises CheckpointError for the first tensor that does not fit `table`."""

    def __init__(
        self,
        files: TensorFiles,
        table: Tensors,
        progress: Progress | None = None,
        *,
        layout: PackedLayout | None = None,
        packed: Sequence[str] = (),
    ) -> None:
        """`packed` are the tensors that the checkpoint has in fewer bits, as `layout` says, and that stay so."""
        if _BARE in files and _INSIDE + _BARE in table:
            table = {name.removeprefix(_INSIDE): entry for name, entry in table.items()}
            packed = [name.removeprefix(_INSIDE) for name in packed]
        table = _with_tied_vectors(files, table)
        widened = [name for name, entry in table.items() if isinstance(entry, Tensor) and entry.packed]
        shapes = {name: entry.shape for name in packed if (entry := table[name]) is not None}
        self._packed = PackedFiles(files, layout, shapes, table) if layout is not None else None
        self._files = self._packed or (UnpackedFiles(files, widened) if widened else files)
        self._meter = Meter(progress, _check(self._files, table))
        _check_tied_head(files, table)
        self._sources = sources_of(table)
        self._kept: tuple[LeafPath, Arrays] = ((), {})  # the weight in fewer bits that was asked for last

    def read(self, part: str, leaves: Iterable[Leaf], placement: Placement) -> Iterator[Array]:
        """The leaves on their devices, one after another."""
        for leaf in leaves:
            yield placement.place(self.on_host(leaf), leaf.names)

    def on_host(self, leaf: Leaf) -> np.ndarray:
        if leaf.form is None:
            return self._in_full(leaf)
        path = leaf.weight.path
        if self._kept[0] != path:
            self._kept = ((), {})
            if self._packed is not None:
                arrays = assembled(leaf.form, self._sources[path], self._packed)
                for name, _, tensor in self._sources[path]:
                    self._meter.add(self._packed.nbytes(name) * tensor.shape[0] // self._packed.shape(name)[0])
            else:
                arrays = rounded(self._in_full(leaf.weight), leaf.form)
            self._kept = (path, arrays)
        return self._kept[1][leaf.path[-1]]

    def _in_full(self, leaf: Leaf) -> np.ndarray:
        values = _aligned(leaf.shape, leaf.dtype)
        for name, first, tensor in self._sources[leaf.path]:
            _read(self._files, name, first, tensor, values[tensor.part], self._meter)
        return values


def _check(files: AnyFiles, table: Tensors) -> int:
    """The bytes to read. Raises CheckpointError for the first tensor that does not fit the family's table."""
    total = 0
    for name in sorted(set(files) - set(table)):
        module = name.rpartition(".")[0]
        weight = f"{module}.weight"
        if isinstance(files, PackedFiles) and weight in table:
            if table[weight] is None and weight != _HEAD:
                continue  # what is not needed may be there in fewer bits too: DeepSeek-V3's layer behind the last one
            raise CheckpointError(f"tensor {name} is unexpected: {module} must be in F32, F16 or BF16, without scales")
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


def _with_tied_vectors(files: TensorFiles, table: Tensors) -> Tensors:
    """The table, where tied vectors may lie under the head's name: safetensors saves a tensor that has two names under
    one of them."""
    vectors = _INSIDE + _BARE
    tied = vectors in table and _HEAD in table and table[_HEAD] is None
    if not tied or vectors in files or _HEAD not in files:
        return table
    return {name: entry for name, entry in table.items() if name != vectors} | {_HEAD: table[vectors]}


def _check_tied_head(files: TensorFiles, table: Tensors) -> None:
    """A head that config.json ties to the token vectors may be in the files, as a copy of them.

    Where it differs, one of config.json and the file is wrong: newer versions of the hub's library use such a head,
    older ones did not. Raises CheckpointError.
    """
    if _HEAD not in files or _HEAD not in table or table[_HEAD] is not None:
        return
    vectors = _INSIDE + _BARE if _INSIDE + _BARE in table else _BARE
    if not _same(files, _HEAD, vectors):
        raise CheckpointError(
            f"tensor {_HEAD} differs from {vectors}, and config.json says that they are one: "
            "tie_word_embeddings must be false, or that tensor left out"
        )


def _same(files: TensorFiles, name: str, other: str) -> bool:
    """Whether both tensors hold the same numbers, a chunk at a time."""
    shape = files.shape(name)
    if shape != files.shape(other):
        return False
    step = max(1, CHUNK_BYTES * shape[0] // files.nbytes(name))
    for begin in range(0, shape[0], step):
        chunks = [files.rows(each, begin, min(begin + step, shape[0])).astype(np.float32) for each in (name, other)]
        if not np.array_equal(*chunks, equal_nan=True):
            return False
    return True


def sources_of(table: Tensors) -> dict[LeafPath, list[tuple[str, int, Tensor]]]:
    """Leaf path -> what makes it up: name, first row in the file, tensor."""
    leaves: dict[LeafPath, list[tuple[str, int, Tensor]]] = {}
    for name, entry in table.items():
        first = 0
        for tensor in () if entry is None else entry.parts:
            path = tensor.path if tensor.layer is None else (tensor.path[0], tensor.layer, *tensor.path[1:])
            leaves.setdefault(path, []).append((name, first, tensor))
            first += tensor.shape[0]
    return leaves


def _aligned(shape: Iterable[int], dtype: Any) -> np.ndarray:
    """Uninitialised."""
    shape = tuple(shape)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _read(
    files: AnyFiles,
    name: str,
    first: int,
    tensor: Tensor,
    leaf: np.ndarray,
    meter: Meter,
) -> None:
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

"""The safetensors files of a checkpoint directory as one set of named tensors, read lazily. Never a pickle."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn
from safetensors import SafetensorError, safe_open

from models.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOAT8 = "F8_E4M3"
BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # of an element; other dtypes are refused


class TensorFiles:
    """Opens `model.safetensors`, or else the files that its index names. A context: it holds files open.

    Raises CheckpointError naming the file or the tensor that is missing, malformed, or there twice.
    """

    def __init__(self, directory: Path) -> None:
        self._stack = ExitStack()
        self._slices: dict[str, Any] = {}
        self._owners: dict[str, Any] = {}
        self._paths: dict[str, Path] = {}
        with self._stack:
            for path, names in _files(directory).items():
                self._open(path, names)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slices.clear()
        self._owners.clear()
        self._stack.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __contains__(self, name: str) -> bool:
        return name in self._slices

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slices[name].get_shape())

    def dtype(self, name: str) -> str:
        """As the file names it: F32, BF16 ..."""
        return self._slices[name].get_dtype()

    def nbytes(self, name: str) -> int:
        """Raises CheckpointError for a tensor that is not F32, F16 or BF16."""
        dtype = self.dtype(name)
        if dtype not in BYTES:
            raise CheckpointError(f"tensor {name} is {dtype}; it must be one of {', '.join(BYTES)}")
        return BYTES[dtype] * int(np.prod(self.shape(name)))

    def rows(self, name: str, begin: int, end: int) -> np.ndarray:
        """[end - begin, ...] of the tensor's first dimension, in its own dtype."""
        if self.dtype(name) == FLOAT8:
            return _float8_rows(self._paths[name], name, begin, end)
        return self._slices[name][begin:end]

    def scalar(self, name: str) -> np.ndarray:
        """A tensor without dimensions, as one of one number."""
        return self._owners[name].get_tensor(name).reshape(1)

    def _open(self, path: Path, names: set[str] | None) -> None:
        try:
            file = self._stack.enter_context(safe_open(path, framework="numpy"))
        except FileNotFoundError:
            raise CheckpointError(f"{path}: there is no such file, and {INDEX} names it") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: it is truncated or no safetensors file ({error})") from error
        found = set(file.keys())
        for name in sorted((names or found) - found):
            raise CheckpointError(f"{path}: tensor {name} is missing; {INDEX} says that it lies in this file")
        for name in sorted(found - (names or found)):
            raise CheckpointError(
                f"{path}: tensor {name} is in this file, but {INDEX} does not say so: it may be there twice"
            )
        self._slices |= {name: file.get_slice(name) for name in found}
        self._owners |= dict.fromkeys(found, file)
        self._paths |= dict.fromkeys(found, path)


def _float8_rows(path: Path, name: str, begin: int, end: int) -> np.ndarray:
    """Rows of a float8_e4m3fn tensor, which the library has no numpy type for: from the file's header and its bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        shape = entry["shape"]
        row = math.prod(shape[1:])
        file.seek(8 + length + entry["data_offsets"][0] + begin * row)
        values = np.fromfile(file, np.uint8, (end - begin) * row)
    return values.view(float8_e4m3fn).reshape(end - begin, *shape[1:])


def _files(directory: Path) -> Mapping[Path, set[str] | None]:
    """Each file with the tensors that the index expects in it; None where there is no index."""
    if (directory / SINGLE).exists():
        return {directory / SINGLE: None}
    index = directory / INDEX
    if not index.exists():
        raise CheckpointError(
            f"{directory}: there is neither {SINGLE} nor {INDEX}; only safetensors are read, no pickles"
        )
    document = read_json(index)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing; it must name the file of each tensor")
    files: dict[Path, set[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file:
            raise CheckpointError(
                f"{index}: tensor {name} lies in {file!r}; it must be a .safetensors file beside the index"
            )
        names = files.setdefault(directory / file, set())
        assert names is not None
        names.add(name)
    return files


def read_json(path: Path) -> Any:
    """Raises CheckpointError where the file is missing, is not JSON, or gives one key twice in an object."""
    try:
        return json.loads(path.read_bytes(), object_pairs_hook=lambda pairs: _unique(path, pairs))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path}: it cannot be read as JSON ({error})") from error


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise CheckpointError(f"{path}: {key} is there twice")
        seen[key] = value
    return seen

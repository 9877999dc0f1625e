"""Checkpoints in weft's own layout: one Orbax checkpoint a layer, and one for what lies outside the layers.

    config.json ...      as in the hub's checkpoint, with the tokenizer's files and the folders of chat templates
    weights/outside      leaves by name, in the shapes that the family declares
    weights/layers.0 ...
    weft.json            written last: a conversion that was cut short is no checkpoint

All of it is called NAME.partial until it is whole.

The leaves are fused and transposed already, so that each device reads its own parts of the files and nothing passes
through the host whole. A leaf whose shape the mesh changes (see sharding/params.py) does, by itself.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as orbax

from models.errors import CheckpointError
from models.host_memory import give_back_freed_memory
from models.hub_weights import HubWeights
from models.leaves import Leaf, LeafPath, Meter, Progress, nbytes_of, parts_of
from models.quantization_rounding import rounded
from models.tensor_files import INDEX, read_json
from sharding.mesh import one_device
from sharding.params import Placement

MARK, WEIGHTS, FORMAT = "weft.json", "weights", 1
_BELOW = (".jinja", ".json")  # in folders: named chat templates, how states become vectors


def is_converted(directory: Path) -> bool:
    return (directory / MARK).exists()


def write_converted(source: Path, listed: Any, weights: HubWeights, target: Path) -> None:
    """Writes `target`, part by part: beside one layer nothing is in memory. Raises CheckpointError where it exists.

    `listed` is the model with its shapes alone and its layers as a list; `weights` are those of `source`.
    """
    target = target.absolute()  # Orbax takes no other
    if target.exists():
        raise CheckpointError(f"{target}: it exists already; name a directory that does not")
    partial = target.with_name(f"{target.name}.partial")
    if partial.exists():  # of a conversion that was killed, or of one that runs
        raise CheckpointError(
            f"{partial}: a conversion to {target.name} runs, or was killed: then remove this directory"
        )
    try:
        _write(source, listed, weights, partial)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write(source: Path, listed: Any, weights: HubWeights, target: Path) -> None:
    (target / WEIGHTS).mkdir(parents=True)
    dtypes = set()
    for part, leaves in parts_of(listed):
        arrays = {_name(leaf.path): jax.device_put(weights.on_host(leaf)) for leaf in leaves}
        orbax.save(str(target / WEIGHTS / part), arrays)
        dtypes |= {str(leaf.dtype) for leaf in leaves}
    for file in sorted([*source.iterdir(), *source.glob("[!.]*/*")]):
        beside = file.suffix != ".safetensors" and file.name != INDEX
        if file.is_file() and (beside if file.parent == source else file.suffix in _BELOW):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)
    (target / MARK).write_text(json.dumps({"format": FORMAT, "dtype": sorted(dtypes)}) + "\n")


class ConvertedWeights:
    """The weights of such a directory. Raises CheckpointError for another version of this layout."""

    def __init__(self, directory: Path, listed: Any, progress: Progress | None = None, *, dtype: Any = None) -> None:
        """Weights that `listed` keeps in fewer bits, and that lie here in full, are in `dtype`."""
        mark = read_json(directory / MARK)
        if not isinstance(mark, dict) or mark.get("format") != FORMAT:
            raise CheckpointError(f"{directory / MARK}: format must be {FORMAT}: convert the checkpoint again")
        self._folder = directory.absolute() / WEIGHTS  # Orbax takes no other
        self._dtype = dtype
        self._meter = Meter(progress, sum(nbytes_of(leaves) for _, leaves in parts_of(listed)))

    def read(self, part: str, leaves: list[Leaf], placement: Placement) -> Iterator[Array]:
        """The leaves on their devices. Raises CheckpointError for a part that is missing or of another shape."""
        host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        if any(leaf.form is not None for leaf in leaves) and not self._is_quantized(part):
            yield from self._rounded(part, leaves, placement)
            return
        kept = {leaf.path: placement.shape(leaf.shape, leaf.names) == leaf.shape for leaf in leaves}
        wanted = {
            _name(leaf.path): jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=placement.sharding(leaf.names) if kept[leaf.path] else host
            )
            for leaf in leaves
        }
        found = jax.block_until_ready(self._load(part, wanted))
        give_back_freed_memory()
        for leaf in leaves:
            array = found.pop(_name(leaf.path))
            self._meter.add(nbytes_of([leaf]))
            yield array if kept[leaf.path] else placement.place(np.asarray(array), leaf.names)

    def _is_quantized(self, part: str) -> bool:
        """Whether the weights of this part lie here in fewer bits."""
        path = self._folder / part
        return path.is_dir() and any(name.endswith(".values") for name in orbax.metadata(str(path)).metadata)

    def _rounded(self, part: str, leaves: list[Leaf], placement: Placement) -> Iterator[Array]:
        """The leaves, of weights that lie here in full."""
        whole = dict.fromkeys(replace(leaf.weight, dtype=self._dtype) if leaf.form else leaf for leaf in leaves)
        one = Placement(one_device(), kv_copies=1)
        arrays = dict(zip((leaf.path for leaf in whole), self.read(part, list(whole), one), strict=True))
        path, kept = (), {}
        for leaf in leaves:
            if leaf.form is None:
                values = np.asarray(arrays[leaf.path])
            else:
                if path != leaf.weight.path:
                    path = leaf.weight.path
                    kept = rounded(np.asarray(arrays.pop(path)), leaf.form)
                values = kept[leaf.path[-1]]
            yield placement.place(values, leaf.names)

    def _load(self, part: str, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
        path = self._folder / part
        if not path.is_dir():
            raise CheckpointError(f"{path}: this part of the checkpoint is missing")
        stored = orbax.metadata(str(path)).metadata
        shapes = {name: tuple(leaf.shape) for name, leaf in stored.items()}
        for name in sorted(set(wanted) | set(shapes)):
            right = None if name not in wanted else tuple(wanted[name].shape)
            if shapes.get(name) != right:
                raise CheckpointError(
                    f"{path}: {name} has shape {shapes.get(name)}; by config.json it must be {right}: convert it again"
                )
        return orbax.load(str(path), wanted)


def _name(path: LeafPath) -> str:
    return ".".join(str(step) for step in path)

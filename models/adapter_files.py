"""A LoRA adapter in the layout of the hub's `peft` library: adapter_config.json and adapter_model.safetensors.

What would change the numbers and is not offered (DoRA, trained biases, whole modules beside the updates, ranks that
differ from layer to layer ...) is refused by name. Never a pickle.
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from models.adapters import AdapterError, AdapterLayout
from models.errors import CheckpointError
from models.fields import Fields
from models.tensor_files import BYTES, read_json

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
CHUNK_BYTES = 1 << 20

# Fields that say where an adapter comes from or how it was trained, or that are read below. Any other one that is set
# means something that is not done here.
_HARMLESS = frozenset({
    "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "r", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
})  # fmt: skip
# Others of the library's ways to begin change the base weights too, which an adapter does not have in it.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    rank: int
    scale: float  # of B
    targets: tuple[str, ...]  # whose layers must all be there; () where the file says which are


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """One adapter on the host: (down, up) of each leaf of the layout."""

    arrays: list[np.ndarray]
    digest: bytes  # of both files
    rank: int


def read_adapter(directory: Path, layout: AdapterLayout) -> AdapterFiles:
    """Raises AdapterError that names the field or the tensor."""
    config = read_config(directory, layout.max_rank)
    with _weights(directory) as (file, path):
        matrices = _matrices(file, path, config, layout)
    return AdapterFiles(layout.on_host(matrices), digest_of(directory), config.rank)


def check_adapter(directory: Path, layout: AdapterLayout) -> None:
    """Refuses what `read_adapter` would, but for numbers that are not finite: of the tensors only the names, shapes and
    types are read. Raises AdapterError."""
    config = read_config(directory, layout.max_rank)
    with _weights(directory) as (file, path):
        for module in _targets(file, path, config, layout):
            for side, shape in _shapes(config, layout, module).items():
                _described(file, path, module, side, shape)


@contextmanager
def _weights(directory: Path) -> Iterator[tuple[Any, Path]]:
    path = directory / WEIGHTS
    try:
        with safe_open(path, framework="numpy") as file:
            yield file, path
    except FileNotFoundError:
        raise AdapterError(f"{path}: there is no such file; only safetensors are read, no pickles") from None
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{path}: it is truncated or no safetensors file ({error})") from error


def digest_of(directory: Path) -> bytes:
    """Two adapters of equal digest give every token the same update. Raises AdapterError."""
    digest = blake2b(digest_size=32)
    for path in (directory / CONFIG, directory / WEIGHTS):
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                digest.update(file.tell().to_bytes(8, "little"))
        except OSError as error:
            raise AdapterError(f"{path}: it cannot be read: {error.strerror or error}") from error
    return digest.digest()


def read_config(directory: Path, max_rank: int) -> AdapterConfig:
    """Raises AdapterError for a field that is malformed, or asks for what is not done."""
    path = directory / CONFIG
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise AdapterError(f"{path}: it must be a JSON object")
        return _config(Fields(values, f"{path}: "), values, max_rank, path)
    except CheckpointError as error:
        raise AdapterError(str(error)) from error


def _config(fields: Fields, values: dict[str, Any], max_rank: int, path: Path) -> AdapterConfig:
    fields.require("peft_type", "LORA")
    if "bias" in fields:
        fields.require("bias", "none")
    if "fan_in_fan_out" in fields:
        fields.require("fan_in_fan_out", False)
    if values.get("init_lora_weights", True) not in _BEGINNINGS:
        raise AdapterError(
            f"{path}: init_lora_weights is {values['init_lora_weights']!r}, which changes the base weights: convert "
            "the adapter to plain LoRA first"
        )
    for name in sorted(values.keys() - _HARMLESS):
        if values[name]:
            raise AdapterError(f"{path}: {name} is {values[name]!r}, which is not offered: it must be unset")
    rank = fields.integer("r")
    if rank > max_rank:
        raise AdapterError(f"{path}: r is {rank}, but adapters.max_rank is {max_rank}")
    alpha = fields.positive("lora_alpha")
    scale = alpha / (math.sqrt(rank) if fields.boolean("use_rslora", False) else rank)
    if isinstance(values.get("target_modules"), str):  # an expression
        return AdapterConfig(rank=rank, scale=scale, targets=())
    if "target_modules" not in fields:
        raise AdapterError(f"{path}: target_modules must be a list of names, or an expression")
    targets = fields.strings("target_modules")
    chosen = any(values.get(name) for name in ("layers_to_transform", "layers_pattern", "exclude_modules"))
    return AdapterConfig(rank=rank, scale=scale, targets=() if chosen else tuple(targets))


def _matrices(
    file: Any, path: Path, config: AdapterConfig, layout: AdapterLayout
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A and B of each target, float32, with the scale in B."""
    read: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for module in _targets(file, path, config, layout):
        a, b = (_tensor(file, path, module, side, shape) for side, shape in _shapes(config, layout, module).items())
        read[module] = (a, b * np.float32(config.scale))
    return read


def _shapes(config: AdapterConfig, layout: AdapterLayout, module: str) -> dict[str, tuple[int, int]]:
    out, into = layout.targets[module].shape
    return {"A": (config.rank, into), "B": (out, config.rank)}


def _targets(file: Any, path: Path, config: AdapterConfig, layout: AdapterLayout) -> list[str]:
    """The layers that the file updates. Raises AdapterError where these are not those of the configuration."""
    modules = _modules(sorted(file.keys()), path, layout)
    for module in _expected(config.targets, layout):
        if module not in modules:
            raise AdapterError(f"{path}: the tensors of {module} are missing: target_modules names it")
    for target in config.targets:
        if not any(_matches(module, target) for module in modules):
            raise AdapterError(f"{path}: target_modules names {target}, and no tensor is for it")
    return modules


def _modules(names: Iterable[str], path: Path, layout: AdapterLayout) -> list[str]:
    """The targets that the tensors are for. Raises AdapterError for a tensor that is for none."""
    sides: dict[str, set[str]] = {}
    for name in names:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise AdapterError(
                f"{path}: tensor {name} is unexpected: it must be base_model.model.<layer>.lora_A.weight or lora_B"
            )
        if match["module"] not in layout.targets:
            raise AdapterError(f"{path}: tensor {name}: {_why_not(match['module'], layout)}")
        sides.setdefault(match["module"], set()).add(match["side"])
    for module, found in sides.items():
        for side in sorted({"A", "B"} - found):
            raise AdapterError(f"{path}: tensor base_model.model.{module}.lora_{side}.weight is missing")
    if not sides:
        raise AdapterError(f"{path}: there are no tensors in it")
    return list(sides)


def _why_not(module: str, layout: AdapterLayout) -> str:
    offered = ", ".join(layout.offered)
    if module in layout.linear:
        return f"{module} is no target that is offered here; offered are {offered}"
    return f"the model has no layer {module}; targets that are offered here are {offered}"


def _expected(targets: Iterable[str], layout: AdapterLayout) -> list[str]:
    """The layers of the model that the names in target_modules stand for, as the library matches them."""
    return [module for module in layout.targets if any(_matches(module, target) for target in targets)]


def _matches(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _described(file: Any, path: Path, module: str, side: str, shape: tuple[int, int]) -> str:
    """A tensor's name, where its shape and type are right. Raises AdapterError."""
    name = f"base_model.model.{module}.lora_{side}.weight"
    part = file.get_slice(name)
    if tuple(part.get_shape()) != shape:
        raise AdapterError(f"{path}: tensor {name} has shape {part.get_shape()}; it must be {list(shape)}")
    if part.get_dtype() not in BYTES:
        raise AdapterError(f"{path}: tensor {name} is {part.get_dtype()}; it must be one of {', '.join(BYTES)}")
    return name


def _tensor(file: Any, path: Path, module: str, side: str, shape: tuple[int, int]) -> np.ndarray:
    name = _described(file, path, module, side, shape)
    values = file.get_tensor(name).astype(np.float32)
    if not np.isfinite(values).all():
        raise AdapterError(f"{path}: tensor {name} has numbers that are not finite")
    return values

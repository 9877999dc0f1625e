"""A small checkpoint as files, by default of a Llama, whose every part a test can break."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models.registry import family_of

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attention_bias": True,
    "mlp_bias": True,
}
INDEX = "model.safetensors.index.json"


def weights(config: Mapping[str, Any] = CONFIG, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    family = family_of(dict(config))
    table = family.tensors(family.parse(dict(config)))
    return {
        name: random.normal(size=tensor.shape).astype(dtype) for name, tensor in table.items() if tensor is not None
    }


def write(
    directory: Path, tensors: dict[str, np.ndarray] | None = None, config: Mapping[str, Any] = CONFIG, shards: int = 0
) -> Path:
    """One file, or `shards` of them with their index."""
    tensors = weights(config) if tensors is None else tensors
    (directory / "config.json").write_text(json.dumps(dict(config)))
    if not shards:
        save_file(tensors, directory / "model.safetensors")
        return directory
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(sorted(tensors.items())) if i % shards == shard}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    write_index(directory, weight_map)
    return directory


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def read_index(directory: Path) -> dict[str, str]:
    return json.loads((directory / INDEX).read_text())["weight_map"]

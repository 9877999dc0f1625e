"""A small EAGLE-3 head as files, as the hub has them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models import eagle3

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": 31,
    "draft_vocab_size": 13,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def weights(
    config: Mapping[str, Any], target_layers: int, *, own_embedding: bool = True, block: str = "midlayer."
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    parsed = eagle3.parse(dict(config), target_layers)
    names = {f"{block}x", *((eagle3.EMBEDDING,) if own_embedding else ())}
    table = eagle3.tensors(parsed, names)
    made: dict[str, np.ndarray] = {
        name: (random.normal(size=tensor.shape) * 0.3).astype(np.float32)
        for name, tensor in table.items()
        if tensor is not None
    }
    count, vocab = parsed.draft_vocab, parsed.sizes.vocab_size
    targets = np.sort(random.choice(vocab, count, replace=False))
    made["d2t"] = (targets - np.arange(count)).astype(np.int64)
    made["t2d"] = np.isin(np.arange(vocab), targets)
    return made


def write(
    directory: Path,
    config: Mapping[str, Any] = CONFIG,
    tensors: Mapping[str, np.ndarray] | None = None,
    target_layers: int = 8,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    made = weights(config, target_layers) if tensors is None else tensors
    save_file(dict(made), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(dict(config)))
    return directory

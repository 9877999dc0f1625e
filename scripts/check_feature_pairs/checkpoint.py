"""A Llama of a few thousand random weights, another and a head that draft for it, an adapter, text for its tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models import eagle3, llama
from serving.engine.vocabulary import Vocabulary

VOCAB_SIZE = 112
WINDOW = 96  # tokens
END = 0
ADAPTER = "tuned"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
    "rope_theta": 10000.0,
}
_RANK = 4
_LETTERS = [chr(code) for code in range(0x20, 0x7F)]


def write_checkpoint(folder: Path, *, seed: int = 1) -> Path:
    folder.mkdir(parents=True)
    config = CONFIG
    random = np.random.default_rng(seed)
    table = llama.tensors(llama.parse(dict(config)))
    save_file(
        {
            name: (random.normal(size=tensor.shape) * 0.3).astype(np.float32)
            for name, tensor in table.items()
            if tensor is not None
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_head(folder: Path) -> Path:
    """An EAGLE-3 head of random weights, for half of the tokens; it has the model's token vectors."""
    folder.mkdir(parents=True)
    config = CONFIG | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCAB_SIZE // 2,
        "eagle_aux_hidden_state_layer_ids": [0, 1],
    }
    random = np.random.default_rng(7)
    table = eagle3.tensors(eagle3.parse(config, CONFIG["num_hidden_layers"]), ())
    tensors: dict[str, np.ndarray] = {
        name: (random.normal(size=tensor.shape) * 0.3).astype(np.float32)
        for name, tensor in table.items()
        if tensor is not None
    }
    save_file(tensors | {"d2t": np.arange(VOCAB_SIZE // 2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_adapter(folder: Path) -> Path:
    """Of the queries and the values of every layer, in the layout of the hub's library."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(5)
    width, head = CONFIG["hidden_size"], CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    outputs = {"q_proj": width, "v_proj": head * CONFIG["num_key_value_heads"]}
    tensors = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, out in outputs.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = random.normal(size=(_RANK, width)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = random.normal(size=(out, _RANK)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 8, "target_modules": sorted(outputs), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def vocabulary() -> Vocabulary:
    """The end, then a token for each printable ASCII character; the rest has no text."""
    return Vocabulary(
        token_bytes=(b"</s>", *(letter.encode() for letter in _LETTERS)),
        special_ids=frozenset({END}),
        end_ids=(END,),
        encode=lambda text: [1 + _LETTERS.index(letter) for letter in text],
    )

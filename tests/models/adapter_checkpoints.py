"""Adapters with random weights, written by the hub's own library, and that library's logits under them."""

from pathlib import Path
from typing import Any

import peft
import torch
from transformers import PreTrainedModel


def write(model: PreTrainedModel, directory: Path, *, seed: int = 0, **fields: Any) -> Path:
    """An adapter for `model`, which is left as it was. B is random too: the library begins with zeros."""
    adapted = adapt(model, seed, **fields)
    adapted.save_pretrained(directory)
    adapted.unload()
    return directory


def adapt(model: PreTrainedModel, seed: int, **fields: Any) -> Any:
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **fields})
    adapted = peft.get_peft_model(model, config)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=random) / weight.shape[-1] ** 0.5)
    return adapted.eval()


def merged(model: PreTrainedModel, directory: Path) -> PreTrainedModel:
    """`model` itself with the adapter added to its weights."""
    return peft.PeftModel.from_pretrained(model, str(directory)).merge_and_unload()

"""Checkpoints with random weights, written by the hub's own library, and that library's logits."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

torch.set_num_threads(1)  # these models are too small to share out, and threads that wait for each other cost seconds

SMALL = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}


def model(architecture: str, **fields: Any) -> PreTrainedModel:
    """With attention written out: the library's fused form leaves out soft caps."""
    kind = getattr(transformers, architecture)
    config = kind.config_class(**{**SMALL, **fields})
    return _with_random_weights(kind._from_config(config, attn_implementation="eager"))


def write(model: PreTrainedModel, directory: Path, *, max_shard_size: str = "5GB") -> Path:
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return directory


def logits(model: PreTrainedModel, token_ids: np.ndarray) -> np.ndarray:
    """[T] -> [T, V] float32."""
    with torch.no_grad():
        return model(torch.from_numpy(token_ids.astype(np.int64))[None]).logits[0].float().numpy()


def greedy(model: PreTrainedModel, prompt: np.ndarray, count: int) -> np.ndarray:
    """The prompt and the `count` tokens that follow it."""
    with torch.no_grad():
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0].numpy().astype(np.int32)


def _with_random_weights(model: PreTrainedModel) -> PreTrainedModel:
    """The library begins with biases of 0, norms of 1 and small weights: they would hide mistakes."""
    random = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=random)
            if name.endswith("bias"):
                weight.copy_(0.3 * values)
            elif "norm" in name:
                weight.copy_(0.3 * values if "gemma" in model.config.model_type else 1 + 0.3 * values)
            else:
                weight.copy_(values / math.sqrt(weight.shape[-1]))
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_(0.3 * torch.randn(bias.shape, generator=random))
    return model.float().eval()

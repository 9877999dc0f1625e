"""Quantized checkpoints against the hub's own library, where it runs them on a CPU: compressed-tensors."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from models.checkpoint import load
from models.quantization import Products
from tests.models import hub_checkpoints, packed_checkpoints
from tests.models.forward import dense_logits
from tests.models.packed_checkpoints import LAYOUTS, MODEL

HUB = MODEL | {"model_type": "llama", "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0}
IDS = np.arange(11) % 31


def both(directory: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(the library's logits, weft's) of one checkpoint."""
    pack, quantization = LAYOUTS[name]
    packed_checkpoints.write(directory, pack, quantization, HUB)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory / "packed", dtype=torch.float32, attn_implementation="eager"
    )
    found, _, _ = load(directory / "packed", jnp.float32, layers="list", products=Products(blocked=True))
    return hub_checkpoints.logits(model.eval(), IDS), dense_logits(found, IDS)


@pytest.mark.parametrize("name", ["int8 in words", "fp8", "fp8 of tensors", "int4"])
def test_logits_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    right, found = both(tmp_path, name)
    np.testing.assert_allclose(found, right, atol=2e-5 * np.abs(right).max())

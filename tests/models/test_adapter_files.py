"""Adapters as the hub's library writes them: the same logits as that library's, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import checkpoint
from models.adapter_files import CONFIG, WEIGHTS, digest_of, read_adapter
from models.adapters import AdapterError, AdapterLayout, lay_out
from models.interface import LayerForm
from models.registry import FAMILIES, family_of
from tests.models import adapter_checkpoints, hub_checkpoints
from tests.models.adapted_forward import adapted_logits, stacks_with

TOLERANCE = 1e-4  # of the largest logit
LENGTH = 24
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], LayerForm]] = {
    "Llama, every target": ("LlamaForCausalLM", {}, {"target_modules": [*ATTENTION, *MLP]}, "list"),
    "Llama, stacked, rslora": ("LlamaForCausalLM", {}, {"target_modules": ["k_proj", "down_proj"], "use_rslora": True, "lora_alpha": 3}, "stacked"),
    "Qwen3": ("Qwen3ForCausalLM", {}, {"target_modules": [*ATTENTION, *MLP], "r": 3}, "stacked"),
    "Qwen3, one layer": ("Qwen3ForCausalLM", {}, {"target_modules": ["q_proj"], "layers_to_transform": [1]}, "list"),
    "Qwen3-MoE, attention": ("Qwen3MoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}, {"target_modules": ATTENTION}, "stacked"),
    "Qwen3-MoE, some dense": ("Qwen3MoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "mlp_only_layers": [0]}, {"target_modules": ATTENTION}, "stacked"),
    "Phi3, fused": ("Phi3ForCausalLM", {}, {"target_modules": ["qkv_proj", "gate_up_proj"]}, "list"),
}  # fmt: skip


def layout_of(directory: Path, form: LayerForm, **sizes: Any) -> AdapterLayout:
    planned, _, config = checkpoint.abstract(directory, jnp.float32, layers=form)
    family = family_of(json.loads((directory / "config.json").read_text()), FAMILIES)
    return lay_out(planned, family.tensors(config), dtype=jnp.float32, **{"slots": 3, "max_rank": 4, **sizes})


@pytest.mark.parametrize("name", CASES)
def test_each_token_gets_the_logits_of_its_own_adapter(name: str, tmp_path: Path) -> None:
    architecture, fields, lora, form = CASES[name]
    hub = hub_checkpoints.model(architecture, **fields)
    hub_checkpoints.write(hub, tmp_path / "base")
    adapter = adapter_checkpoints.write(hub, tmp_path / "adapter", **lora)
    layout = layout_of(tmp_path / "base", form)
    model, *_ = checkpoint.load(tmp_path / "base", jnp.float32, layers=form)
    stacks = stacks_with(layout, {1: read_adapter(adapter, layout).arrays})
    token_ids = np.random.default_rng(3).integers(0, 257, LENGTH)
    whole = {slot: adapted_logits(model, layout, stacks, token_ids, np.full(LENGTH, slot)) for slot in (-1, 1)}
    base = hub_checkpoints.logits(hub, token_ids)
    expected = hub_checkpoints.logits(adapter_checkpoints.merged(hub, adapter), token_ids)
    largest = np.abs(expected).max()
    assert np.abs(expected - base).max() > 0.05 * largest
    np.testing.assert_allclose(whole[1], expected, atol=TOLERANCE * largest, rtol=0)
    np.testing.assert_allclose(whole[-1], base, atol=TOLERANCE * largest, rtol=0)

"""Adapters as the hub's library writes them: the same logits as that library's, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import checkpoint, llama
from models.adapter_files import CONFIG, WEIGHTS, check_adapter, digest_of, read_adapter
from models.adapters import AdapterError, AdapterLayout, lay_out
from models.interface import LayerForm
from models.registry import FAMILIES, family_of
from tests.fakes import tiny_adapters, tiny_model
from tests.models import adapter_checkpoints, hub_checkpoints
from tests.models.adapted_forward import adapted_program, stacks_with

TOLERANCE = 1e-4  # of the largest logit
LENGTH = 24
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "mlp_only_layers": [0]}

# What the model has, what the adapter has, how layers are held.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], LayerForm]] = {
    "every target": ("LlamaForCausalLM", {}, {"target_modules": [*ATTENTION, *MLP]}, "stacked"),
    "rslora, some layers": (
        "Qwen3ForCausalLM",
        {"num_hidden_layers": 3},
        {"target_modules": ["k_proj", "down_proj"], "use_rslora": True, "r": 3, "layers_to_transform": [0, 2]},
        "stacked",
    ),
    "beside experts": ("Qwen3MoeForCausalLM", MOE, {"target_modules": ATTENTION}, "stacked"),
    "fused layers, listed": (
        "Phi3ForCausalLM",
        {"num_hidden_layers": 1},
        {"target_modules": ["qkv_proj", "gate_up_proj"]},
        "list",
    ),
}


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
    run = adapted_program(model, layout, stacks)
    whole = {slot: run(token_ids, np.full(LENGTH, slot)) for slot in (-1, 1)}
    base = hub_checkpoints.logits(hub, token_ids)
    expected = hub_checkpoints.logits(adapter_checkpoints.merged(hub, adapter), token_ids)
    largest = np.abs(expected).max()
    assert np.abs(expected - base).max() > 0.05 * largest
    np.testing.assert_allclose(whole[1], expected, atol=TOLERANCE * largest, rtol=0)
    np.testing.assert_allclose(whole[-1], base, atol=TOLERANCE * largest, rtol=0)


@pytest.fixture(scope="module")
def tiny() -> AdapterLayout:
    config = llama.parse(tiny_model.CONFIG)
    planned = llama.build(config, jnp.float32, seed=None)
    return lay_out(planned, llama.tensors(config), slots=1, max_rank=4, dtype=jnp.float32)


REFUSED = {
    "r": ({"rank": 5}, "r is 5, but adapters.max_rank is 4"),
    "peft_type": ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
    "bias": ({"bias": "all"}, "bias is 'all'"),
    "DoRA": ({"use_dora": True}, "use_dora is True"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
    "ranks by layer": ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is"),
    "experts": ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters is"),
    "what is not known yet": ({"use_sparkle": True}, "use_sparkle is True"),
    "a beginning that changes the base": ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    "a target without tensors": ({"target_modules": [*ATTENTION, *MLP, "head"]}, "names head, and no tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_adapter_asks_for_and_is_not_offered_is_refused_by_name(
    name: str, tiny: AdapterLayout, tmp_path: Path
) -> None:
    fields, said = REFUSED[name]
    rank = fields.pop("rank", 4) if name == "r" else 4
    with pytest.raises(AdapterError, match=re.escape(said)):
        read_adapter(tiny_adapters.write_adapter(tmp_path, 0, rank=rank, **fields), tiny)


def rewritten(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    return folder


Q = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
TENSORS: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    "shape": (lambda tensors: tensors.update({Q: tensors[Q][:, :-1].copy()}), f"{Q} has shape [4, 31]; it must be"),
    "missing half": (lambda tensors: tensors.pop(Q), f"{Q} is missing"),
    "unknown layer": (lambda tensors: tensors.update({Q.replace("1", "7"): tensors[Q]}), "the model has no layer"),
    "not offered": (
        lambda tensors: tensors.update({"base_model.model.lm_head.lora_A.weight": tensors[Q]}),
        "lm_head is no target that is offered here",
    ),
    "no update": (lambda tensors: tensors.update({"base_model.model.norm.weight": tensors[Q]}), "is unexpected"),
    "not finite": (lambda tensors: tensors[Q].fill(np.nan), "not finite"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_does_not_fit_is_named(name: str, tiny: AdapterLayout, tmp_path: Path) -> None:
    change, said = TENSORS[name]
    folder = rewritten(tiny_adapters.write_adapter(tmp_path, 0), change)
    with pytest.raises(AdapterError, match=re.escape(said)):
        read_adapter(folder, tiny)
    if name == "not finite":  # its numbers are not looked at
        check_adapter(folder, tiny)
        return
    with pytest.raises(AdapterError, match=re.escape(said)):
        check_adapter(folder, tiny)


def test_a_layer_that_target_modules_names_must_be_there(tiny: AdapterLayout, tmp_path: Path) -> None:
    def without(tensors: dict[str, np.ndarray]) -> None:
        for side in "AB":
            del tensors[Q.replace("lora_A", f"lora_{side}")]

    folder = rewritten(tiny_adapters.write_adapter(tmp_path, 0), without)
    with pytest.raises(AdapterError, match=r"tensors of model\.layers\.1\.self_attn\.q_proj are missing"):
        read_adapter(folder, tiny)


def test_only_safetensors_are_read(tiny: AdapterLayout, tmp_path: Path) -> None:
    folder = tiny_adapters.write_adapter(tmp_path, 0)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterError, match="no pickles"):
        read_adapter(folder, tiny)


def test_adapters_of_other_weights_or_another_scale_have_other_digests(tmp_path: Path) -> None:
    folders = [
        tiny_adapters.write_adapter(tmp_path / "a", 0),
        tiny_adapters.write_adapter(tmp_path / "b", 1),
        tiny_adapters.write_adapter(tmp_path / "c", 0, lora_alpha=9),
    ]
    again = tiny_adapters.write_adapter(tmp_path / "d", 0)
    assert len({digest_of(folder) for folder in folders}) == 3
    assert digest_of(again) == digest_of(folders[0])
    assert json.loads((again / CONFIG).read_text())["r"] == tiny_adapters.RANK


def test_slots_are_kept_for_the_targets_that_are_wanted_alone() -> None:
    config = llama.parse(tiny_model.CONFIG)
    planned, table = llama.build(config, jnp.float32, seed=None), llama.tensors(config)
    layout = lay_out(planned, table, slots=1, max_rank=4, dtype=jnp.float32, wanted=("v_proj", "o_proj"))
    assert {leaf.targets: leaf.rank for leaf in layout.leaves} == {("v_proj",): 4, ("o_proj",): 4}
    with pytest.raises(AdapterError, match="lm_head is no target of this model; it can be down_proj, gate_proj"):
        lay_out(planned, table, slots=1, max_rank=4, dtype=jnp.float32, wanted=("lm_head",))

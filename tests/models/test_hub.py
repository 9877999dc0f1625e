from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.hub import Places
from models.interface import Family
from models.registry import FAMILIES
from tests.models.tiny_checkpoint import CONFIG

NO_BIASES = {"attention_bias": False, "mlp_bias": False}
DEEPSEEK = NO_BIASES | {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
}
OWN_FIELDS: dict[str, dict[str, Any]] = {
    "Phi3ForCausalLM": NO_BIASES,
    "DeepseekV2ForCausalLM": DEEPSEEK,
    "DeepseekV3ForCausalLM": DEEPSEEK,
}


@pytest.mark.parametrize(
    ("family", "architecture"),
    [pytest.param(family, name, id=name) for family in FAMILIES for name in family.architectures],
)
@pytest.mark.parametrize("change", [{"tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}, {}])
def test_a_familys_tensors_fill_every_leaf_exactly_once(
    family: Family, architecture: str, change: dict[str, Any]
) -> None:
    values = {**CONFIG, **change, **OWN_FIELDS.get(architecture, {}), "architectures": [architecture]}
    config = family.parse(values)
    state = nnx.to_flat_state(nnx.state(family.build(config, jnp.float32, seed=None)))
    filled = {path: np.zeros(leaf.get_value().shape, int) for path, leaf in state}
    for entry in family.tensors(config).values():
        for tensor in () if entry is None else entry.parts:
            index = tensor.part if tensor.layer is None else (tensor.layer, *tensor.part)
            part = filled[tensor.path][index]
            assert part.shape == tuple(tensor.split[i] for i in tensor.order)
            filled[tensor.path][index] += 1
    for path, times in filled.items():
        assert (times == 1).all(), path


def test_the_rows_of_a_fused_tensor_are_those_of_its_parts() -> None:
    places = Places(sizes={"D": 5, "K": 2, "G": 3, "H": 6, "C": 4}).of_layer(1)
    fused = places.fused_qkv("at.", "qkv")["at.qkv_proj.weight"]
    assert fused is not None
    assert fused.shape == (6 * 4 + 2 * 4 + 2 * 4, 5)
    assert [part.shape[0] for part in fused.parts] == [24, 8, 8]


def test_a_layout_says_how_rows_are_split_and_turned() -> None:
    places = Places(sizes={"D": 5, "K": 2, "G": 3, "C": 4}).of_layer(1)
    tensor = places.put("qkv.weight", "(KGC)D -> DKGC")
    assert (tensor.path, tensor.layer) == (("layers", "qkv", "weight"), 1)
    assert (tensor.shape, tensor.split, tensor.order) == ((24, 5), (2, 3, 4, 5), (3, 0, 1, 2))
    whole = Places(sizes={"D": 5}).put("norm.scale", "D")
    assert (whole.path, whole.layer, whole.shape, whole.order) == (("norm", "scale"), None, (5,), (0,))

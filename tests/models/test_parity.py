"""Each family against the hub's own library: the same logits, the same best token at each of them."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from models import checkpoint
from tests.models import hub_checkpoints
from tests.models.forward import dense_logits

PROMPT, GREEDY = 16, 64
LENGTH = PROMPT + GREEDY  # past every window and every rope's boundary below
TOLERANCE = 2e-5  # of the largest logit

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

SHORT_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 1.3 * i for i in range(8)],
}
TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": 11, "num_hidden_layers": 3}
QWEN3_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
GPT_OSS = {
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 11,
    "rope_parameters": {**YARN, "rope_theta": 1.5e5, "truncate": False},
}
LLAMA4 = {
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 80,
    "attention_chunk_size": 11,
    "no_rope_layer_interval": 2,
    "floor_scale": 9,
    "attn_scale": 0.5,
}
DEEPSEEK = {
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
}

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "LlamaForCausalLM": {
        "one KV head a query head": {"num_key_value_heads": 4},
        "two query heads a KV head": {"vocab_size": 1003},
        "four": {"num_attention_heads": 8, "num_key_value_heads": 2},
        "eight": {"num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 128},
        "one KV head": {"num_key_value_heads": 1},
        "tied": {"tie_word_embeddings": True},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "heads wider than the model": {"head_dim": 40},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}},
        "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "llama3": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 5e5}},
        "yarn": {"rope_parameters": {**YARN, "rope_theta": 10000.0}},
    },
    "Qwen3ForCausalLM": {
        "one KV head a query head": {"num_key_value_heads": 4},
        "two query heads a KV head, tied": {"tie_word_embeddings": True, "vocab_size": 1003},
        "eight, biases": {"num_attention_heads": 8, "num_key_value_heads": 1, "attention_bias": True},
        "four, heads wider than the model, yarn": {
            "num_attention_heads": 8,
            "head_dim": 32,
            "rope_parameters": {**YARN, "rope_theta": 1e6},
        },
        "the upper layers slide": {
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    },
    "MistralForCausalLM": {
        "a window": {"sliding_window": 11},
        "a window of one page's edge, four query heads a KV head": {"sliding_window": 16, "num_attention_heads": 8},
        "no window, wide heads, tied": {"sliding_window": None, "head_dim": 24, "tie_word_embeddings": True},
    },
    "Qwen2ForCausalLM": {
        "all layers see everything": {"num_key_value_heads": 1},
        "tied, yarn": {"tie_word_embeddings": True, "rope_parameters": {**YARN, "rope_theta": 1e6}},
        "the upper layers slide": {
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    },
    "Gemma2ForCausalLM": {
        "caps and every other layer slides": GEMMA,
        "caps that bite, biases": {
            **GEMMA,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
            "attention_bias": True,
        },
        "no caps, layers by name": {
            **GEMMA,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "num_key_value_heads": 4,
        },
    },
    "Gemma3ForCausalLM": {
        "two ropes": {**GEMMA, "sliding_window_pattern": 3, "rope_parameters": TWO_ROPES},
        "one KV head, a cap on logits": {
            **GEMMA,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "num_key_value_heads": 1,
            "final_logit_softcapping": 2.0,
        },
        "all layers slide, biases": {**GEMMA, "attention_bias": True},
    },
    "Phi3ForCausalLM": {
        "a window, one KV head a query head": {"sliding_window": 11, "num_key_value_heads": 4},
        "part of a head turns, tied": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
            "tie_word_embeddings": True,
        },
        "sequences up to the boundary": {
            "rope_parameters": SHORT_LONG,
            "original_max_position_embeddings": LENGTH,
        },
        "sequences past the boundary": {
            "rope_parameters": SHORT_LONG,
            "original_max_position_embeddings": PROMPT - 1,
        },
        "past the boundary, part of a head turns": {
            "rope_parameters": {
                **SHORT_LONG,
                "partial_rotary_factor": 0.75,
                "short_factor": SHORT_LONG["short_factor"][:6],
                "long_factor": SHORT_LONG["long_factor"][:6],
            },
            "original_max_position_embeddings": PROMPT - 1,
        },
    },
    "Olmo2ForCausalLM": {
        "one KV head a query head": {"num_key_value_heads": 4},
        "two, biases, tied": {"attention_bias": True, "tie_word_embeddings": True},
    },
    "Olmo3ForCausalLM": {
        "three of four layers slide, yarn on the fourth": {
            "num_hidden_layers": 4,
            "sliding_window": 11,
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    },
    "GlmForCausalLM": {"half of a head turns": {}},
    "Glm4ForCausalLM": {
        "half of a head turns": {},
        "a whole head, no biases, tied": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
            "attention_bias": False,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
        },
    },
    "MixtralForCausalLM": {
        "two of four experts": {"num_local_experts": 4},
        "three of six, a window, one KV head": {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 11,
            "num_key_value_heads": 1,
        },
    },
    "Qwen3MoeForCausalLM": {
        "three of eight experts, weights as they are": QWEN3_MOE,
        "renormalized, biases, the first and the third layer dense": {
            **QWEN3_MOE,
            "norm_topk_prob": True,
            "attention_bias": True,
            "num_hidden_layers": 4,
            "mlp_only_layers": [0, 2],
        },
        "every second layer routes": {**QWEN3_MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2},
    },
    "GptOssForCausalLM": {
        "sinks, every other layer slides, yarn without whole dimensions": GPT_OSS,
        "one KV head, a clip that bites, no biases on attention": {
            **GPT_OSS,
            "num_key_value_heads": 1,
            "swiglu_limit": 0.4,
            "attention_bias": False,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    },
    "Llama4ForCausalLM": {
        "chunks, a layer without positions, every second layer dense": LLAMA4,
        "two experts a token, all layers route, no norm, biases": {
            **LLAMA4,
            "num_experts_per_tok": 2,
            "interleave_moe_layer_step": 1,
            "use_qk_norm": False,
            "attention_bias": True,
        },
    },
    "DeepseekV3ForCausalLM": {
        "the first layer dense, groups of experts, yarn on scores": {
            **DEEPSEEK,
            "rope_parameters": {**YARN, "rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        "queries in one projection, two shared experts, halves turn": {
            **DEEPSEEK,
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "rope_interleave": False,
            "norm_topk_prob": False,
        },
    },
    "DeepseekV2ForCausalLM": {
        "the best of all experts, queries in one projection": {
            **DEEPSEEK,
            "q_lora_rank": None,
            "topk_method": "greedy",
        },
        "the best groups, yarn whose weights differ": {
            **DEEPSEEK,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 16.0,
            "rope_parameters": {**YARN, "rope_theta": 1e4, "mscale": 0.7, "mscale_all_dim": 1.1},
        },
    },
}


@pytest.mark.parametrize(
    ("architecture", "fields", "greedy"),
    [
        pytest.param(architecture, fields, case == 0, id=f"{architecture}, {name}")
        for architecture, cases in CASES.items()
        for case, (name, fields) in enumerate(cases.items())
    ],
)
def test_a_family_agrees_with_the_hub(tmp_path: Path, architecture: str, fields: dict[str, Any], greedy: bool) -> None:
    """On a random text; in one case of each family on the text that the hub's library draws from a prompt."""
    theirs = hub_checkpoints.model(architecture, **fields)
    hub_checkpoints.write(theirs, tmp_path)
    model, shape, _ = checkpoint.load(tmp_path, jnp.float32, layers="list", max_length=LENGTH)
    assert shape.vocab_size == theirs.config.vocab_size
    tokens = np.random.default_rng(5).integers(0, shape.vocab_size, LENGTH)
    if greedy:
        tokens = hub_checkpoints.greedy(theirs, tokens[:PROMPT], GREEDY)
    right = hub_checkpoints.logits(theirs, tokens)
    found = dense_logits(model, tokens)
    rounding = TOLERANCE * np.abs(right).max()
    assert np.abs(found - right).max() < rounding
    for at in np.flatnonzero(found.argmax(axis=-1) != right.argmax(axis=-1)):
        second, first = np.sort(right[at])[-2:]
        assert first - second < rounding, f"the best token after {at} differs, and not by rounding"
    if greedy:  # token by token after the same tokens: equal at each of them is equal as a whole
        np.testing.assert_array_equal(found[PROMPT - 1 : -1].argmax(axis=-1), tokens[PROMPT:])


@pytest.mark.parametrize("said", [{}, {"rope_scaling": None, "rope_theta": 3e4}])
def test_what_config_json_does_not_say_of_gpt_oss_rope_is_what_the_hub_assumes(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    hub_checkpoints.write(hub_checkpoints.model("GptOssForCausalLM", **GPT_OSS), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**config, **said}))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype="float32")
    model, shape, _ = checkpoint.load(tmp_path, jnp.float32, layers="list")
    tokens = np.random.default_rng(5).integers(0, shape.vocab_size, LENGTH)
    right = hub_checkpoints.logits(theirs, tokens)
    assert np.abs(dense_logits(model, tokens) - right).max() < TOLERANCE * np.abs(right).max()

"""Each family against the hub's own library: the same logits, and the same greedy tokens."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models import checkpoint
from tests.models import hub_checkpoints
from tests.models.forward import dense_logits

PROMPT, GREEDY = 16, 64
TOLERANCE = 2e-5  # of the largest logit

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

LLAMAS: dict[str, dict[str, Any]] = {
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
}
QWEN3S: dict[str, dict[str, Any]] = {
    "one KV head a query head": {"num_key_value_heads": 4},
    "two query heads a KV head, tied": {"tie_word_embeddings": True, "vocab_size": 1003},
    "eight, biases": {"num_attention_heads": 8, "num_key_value_heads": 1, "attention_bias": True},
    "four, heads wider than the model, yarn": {
        "num_attention_heads": 8,
        "head_dim": 32,
        "rope_parameters": {**YARN, "rope_theta": 1e6},
    },
}


@pytest.mark.parametrize("fields", LLAMAS.values(), ids=LLAMAS.keys())
def test_llama_agrees_with_the_hub(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert_parity(hub_checkpoints.llama(**fields), tmp_path)


@pytest.mark.parametrize("fields", QWEN3S.values(), ids=QWEN3S.keys())
def test_qwen3_agrees_with_the_hub(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert_parity(hub_checkpoints.qwen3(**fields), tmp_path)


def assert_parity(theirs: Any, directory: Path) -> None:
    hub_checkpoints.write(theirs, directory)
    model, shape, _ = checkpoint.load(directory, jnp.float32, layers="list")
    assert shape.vocab_size == theirs.config.vocab_size
    prompt = np.random.default_rng(5).integers(0, shape.vocab_size, PROMPT)
    tokens = hub_checkpoints.greedy(theirs, prompt, GREEDY)
    right = hub_checkpoints.logits(theirs, tokens)
    found = dense_logits(model, tokens)
    rounding = TOLERANCE * np.abs(right).max()
    assert np.abs(found - right).max() < rounding
    # Token by token after the same tokens: equal at each of them is equal as a whole.
    best = found[PROMPT - 1 : -1].argmax(axis=-1)
    for at in np.flatnonzero(best != tokens[PROMPT:]):
        second, first = np.sort(right[PROMPT - 1 + at])[-2:]
        assert first - second < rounding, f"token {at} differs, and not by rounding"

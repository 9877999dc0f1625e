"""BERT against `transformers`, with random weights."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from models import bert
from models.checkpoint import load
from models.errors import CheckpointError

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}


def saved(folder: Path, **fields: Any) -> transformers.BertModel:
    torch.manual_seed(3)
    config = transformers.BertConfig(**{**SIZES, "max_position_embeddings": 40, **fields})
    model = transformers.BertModel(config).eval()
    for parameter in model.parameters():  # its own weights start so small that a mistake would hide
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("layers", ["list", "stacked"])
@pytest.mark.parametrize("fields", [{}, {"num_attention_heads": 1, "type_vocab_size": 3, "layer_norm_eps": 1e-5}])
def test_hidden_states_are_the_hubs(tmp_path: Path, fields: dict[str, Any], layers: Any) -> None:
    reference = saved(tmp_path, **fields)
    model, _, _ = load(tmp_path, jnp.float32, layers=layers, families=(bert,))
    lengths = np.array([11, 1, 40, 7])
    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (4, 40))
    mask = torch.from_numpy((np.arange(40) < lengths[:, None]).astype(np.int64))
    with torch.no_grad():
        wanted = reference(input_ids=torch.from_numpy(ids), attention_mask=mask).last_hidden_state.numpy()
    hidden = np.asarray(model(jnp.asarray(ids), jnp.asarray(lengths)))
    for text, length in enumerate(lengths):
        np.testing.assert_allclose(hidden[text, :length], wanted[text, :length], rtol=1e-4, atol=2e-5)
    vectors = np.asarray(bert.mean_vectors(jnp.asarray(hidden), jnp.asarray(lengths)))
    means = [wanted[text, :length].mean(0) for text, length in enumerate(lengths)]
    np.testing.assert_allclose(vectors, [mean / np.linalg.norm(mean) for mean in means], rtol=1e-4, atol=2e-5)


def test_padding_changes_no_vector() -> None:
    model = bert.build(bert.parse({**SIZES, "max_position_embeddings": 40}), jnp.float32)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 97, (2, 9)))
    lengths = jnp.asarray([9, 4])
    short = bert.mean_vectors(model(ids, lengths), lengths)
    padded = bert.mean_vectors(model(jnp.pad(ids, ((0, 0), (0, 23)), constant_values=5), lengths), lengths)
    np.testing.assert_allclose(short, padded, atol=1e-6)


@pytest.mark.parametrize(
    "fields",
    [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"is_decoder": True}, {"hidden_size": 50}],
)
def test_what_it_does_not_do_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(fields))):
        bert.parse({**SIZES, "max_position_embeddings": 40, **fields})

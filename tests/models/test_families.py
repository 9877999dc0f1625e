"""What every family asks of a config.json."""

import pytest

from models.errors import CheckpointError
from models.interface import Family
from models.registry import FAMILIES
from tests.fakes.tiny_model import CONFIG


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
def test_a_checkpoint_says_what_window_it_was_made_for(family: Family) -> None:
    """The API process, which has no model code, reads it too: a default of one family's could not be kept there."""
    config = {**CONFIG, "head_dim": 8, "first_k_dense_replace": 0}
    assert family.shape(family.parse(config)).max_position == CONFIG["max_position_embeddings"]
    del config["max_position_embeddings"]
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        family.parse(config)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
def test_a_decoder_that_sees_both_ways_is_refused(family: Family) -> None:
    """Models for embedding that were made of decoders are saved under a decoder's name."""
    config = {**CONFIG, "head_dim": 8, "first_k_dense_replace": 0}
    assert family.parse({**config, "is_causal": True}) == family.parse(config)
    with pytest.raises(CheckpointError, match="is_causal is False; it must be True"):
        family.parse({**config, "is_causal": False})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
def test_rotary_frequencies_may_be_in_the_files(family: Family) -> None:
    """Libraries that keep them as buffers write them; here they are computed."""
    table = family.tensors(family.parse({**CONFIG, "head_dim": 8, "first_k_dense_replace": 0}))
    for at in ("model.", "model.layers.0.self_attn.", "model.layers.1.self_attn."):
        assert table[f"{at}rotary_emb.inv_freq"] is None

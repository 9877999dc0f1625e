from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.hub import Places
from models.interface import Family
from models.registry import FAMILIES
from tests.models.tiny_checkpoint import CONFIG


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}])
def test_a_familys_tensors_fill_every_leaf_exactly_once(family: Family, change: dict[str, Any]) -> None:
    config = family.parse({**CONFIG, **change})
    state = nnx.to_flat_state(nnx.state(family.build(config, jnp.float32, seed=None)))
    filled = {path: np.zeros(leaf.get_value().shape, int) for path, leaf in state}
    for tensor in family.tensors(config).values():
        if tensor is not None:
            index = tensor.part if tensor.layer is None else (tensor.layer, *tensor.part)
            part = filled[tensor.path][index]
            assert part.shape == tuple(tensor.split[i] for i in tensor.order)
            filled[tensor.path][index] += 1
    for path, times in filled.items():
        assert (times == 1).all(), path


def test_a_layout_says_how_rows_are_split_and_turned() -> None:
    places = Places(sizes={"D": 5, "K": 2, "G": 3, "C": 4}).of_layer(1)
    tensor = places.put("qkv.weight", "(KGC)D -> DKGC")
    assert (tensor.path, tensor.layer) == (("layers", "qkv", "weight"), 1)
    assert (tensor.shape, tensor.split, tensor.order) == ((24, 5), (2, 3, 4, 5), (3, 0, 1, 2))
    whole = Places(sizes={"D": 5}).put("norm.scale", "D")
    assert (whole.path, whole.layer, whole.shape, whole.order) == (("norm", "scale"), None, (5,), (0,))

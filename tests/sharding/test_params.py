"""What the mesh does to a leaf: copies of KV heads with the queries that read them, and padding that counts nothing."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sharding.params import Names, Placement, placement_of
from sharding.rules import spec_of
from tests.sharding.abstract_mesh import mesh_of

D, K, G, C = 3, 2, 4, 5


def eight() -> Placement:
    return placement_of(mesh_of(tensor=8), K * G, K)


def test_the_copies_of_a_kv_head_share_out_its_queries_in_order() -> None:
    fused = np.random.default_rng(0).standard_normal((D, K, G + 2, C))
    laid = eight().laid_out(fused, ("model", "kv_heads", "queries_key_value", None))
    assert laid.shape == (D, 8, 1 + 2, C)
    np.testing.assert_array_equal(laid[:, :, :1].reshape(D, 8, C), fused[:, :, :G].reshape(D, 8, C))
    for device in range(8):
        np.testing.assert_array_equal(laid[:, device, 1:], fused[:, device // G, G:])


@pytest.mark.parametrize(
    ("names", "shape", "expected"),
    [
        (("model", "kv_heads", "queries_key_value", None), (D, K, G + 2, C), (D, 8, 3, C)),
        (("layers", "kv_heads", "queries_key_value", None), (7, K, G + 2, C), (7, 8, 3, C)),
        (("kv_heads", "queries", None), (K, G, C), (8, 1, C)),
        (("kv_heads", None), (K, C), (8, C)),
        (("heads", None, "model"), (8, C, D), (8, C, D)),
        (("model", None, "mlp"), (D, 2, 45), (D, 2, 48)),
        (("vocab", "model"), (131, D), (136, D)),
        (("experts", "expert_mlp", "model"), (6, 20, D), (6, 24, D)),
        (("states", "model"), (90, D), (96, D)),
    ],
)
def test_the_shape_on_a_mesh_is_that_of_the_values_laid_out(
    names: Names, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).standard_normal(shape)
    laid = eight().laid_out(values, names)
    assert laid.shape == eight().shape(shape, names) == expected


def test_padding_is_zeros_at_the_end() -> None:
    values = np.ones((D, 2, 45))
    laid = eight().laid_out(values, ("model", None, "mlp"))
    np.testing.assert_array_equal(laid[:, :, :45], values)
    assert not laid[:, :, 45:].any()


def test_a_leaf_that_fits_is_not_copied() -> None:
    values = np.ones((8, C, D))
    assert eight().laid_out(values, ("heads", None, "model")) is values


def test_a_name_that_the_table_lacks_is_an_error() -> None:
    assert spec_of(("vocab", None, "model")) == PartitionSpec(("expert", "tensor"), None, None)
    with pytest.raises(KeyError, match="heds"):
        spec_of(("heds",))

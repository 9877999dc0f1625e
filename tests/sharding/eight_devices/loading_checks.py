"""Weights go from their files to their devices: from either layout, in either form, onto any mesh."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import checkpoint
from models.interface import LayerForm
from sharding.mesh import make_mesh
from sharding.params import place_model, placement_of
from tests.models import tiny_checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    hub = tiny_checkpoint.write(tmp_path_factory.mktemp("hub"))
    checkpoint.convert(hub, hub.parent / "converted")
    return {"hub": hub, "converted": hub.parent / "converted"}


@pytest.mark.parametrize("layout", ["hub", "converted"])
@pytest.mark.parametrize(
    ("sizes", "form"), [({"tensor": 4}, "list"), ({"tensor": 4}, "stacked"), ({"expert": 2, "tensor": 1}, "list")]
)
def test_each_weight_is_where_its_shards_belong(
    folders: dict[str, Path], layout: str, sizes: dict[str, int], form: LayerForm
) -> None:
    placement = placement_of(make_mesh(sizes), 4, 2)
    loaded = checkpoint.load(folders[layout], jnp.float32, placement=placement, layers=form)[0]
    whole = checkpoint.load(folders["hub"], jnp.float32, layers=form)[0]
    expected = dict(nnx.to_flat_state(nnx.state(place_model(whole, placement))))
    for path, leaf in nnx.to_flat_state(nnx.state(loaded)):
        found, right = leaf.get_value(), expected[path].get_value()
        assert found.sharding.is_equivalent_to(right.sharding, found.ndim), path
        np.testing.assert_array_equal(np.asarray(found), np.asarray(right))

"""Weights go from their files to their devices: from either layout, in either form, onto any mesh."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import checkpoint
from models.interface import LayerForm
from models.stages import on_mesh
from sharding.mesh import make_mesh, stage_meshes
from sharding.params import place_model, placement_of
from tests.models import tiny_checkpoint
from tests.models.forward import dense_logits


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    hub = tiny_checkpoint.write(tmp_path_factory.mktemp("hub"))
    checkpoint.convert(hub, hub.parent / "converted")
    more_heads = tmp_path_factory.mktemp("eight_heads")
    config = tiny_checkpoint.CONFIG | {"num_attention_heads": 8, "head_dim": 4}
    eight = tiny_checkpoint.write(more_heads, tiny_checkpoint.weights(config), config)
    checkpoint.convert(eight, more_heads / "converted")
    return {
        "hub": hub,
        "converted": hub.parent / "converted",
        "eight heads, hub": eight,
        "eight heads": more_heads / "converted",
    }


@pytest.mark.parametrize("sizes", [{"tensor": 8}, {"data": 2, "tensor": 4}, {"data": 4, "tensor": 2}, {"data": 8}])
def test_a_converted_checkpoint_gives_the_same_logits_on_every_mesh(
    folders: dict[str, Path], sizes: dict[str, int]
) -> None:
    tokens = np.arange(1, 13)
    logits = dense_logits(checkpoint.load(folders["eight heads, hub"], jnp.float32)[0], tokens)
    placement = placement_of(make_mesh(sizes), 8, 2)
    restored = checkpoint.load(folders["eight heads"], jnp.float32, placement=placement)[0]
    assert restored.embedding.table.get_value().sharding.mesh.shape["tensor"] == sizes.get("tensor", 1)
    np.testing.assert_allclose(dense_logits(restored, tokens)[:, : logits.shape[1]], logits, atol=1e-4)


def test_each_stage_of_a_pipeline_is_loaded_onto_its_own_devices(folders: dict[str, Path]) -> None:
    mesh = make_mesh({"pipeline": 2, "tensor": 2})
    loaded = checkpoint.load(folders["converted"], jnp.float32, placement=placement_of(mesh, 4, 2))[0]
    whole = checkpoint.load(folders["hub"], jnp.float32)[0]
    expected = on_mesh(whole, placement_of(mesh, 4, 2))
    for part, right, stage in zip(loaded.parts, expected.parts, stage_meshes(mesh), strict=True):
        leaves = dict(nnx.to_flat_state(nnx.state(right)))
        for path, leaf in nnx.to_flat_state(nnx.state(part)):
            found, same = leaf.get_value(), leaves.pop(path).get_value()
            assert found.sharding.device_set == set(stage.devices.flat), path
            np.testing.assert_array_equal(np.asarray(found), np.asarray(same))
        assert not leaves


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

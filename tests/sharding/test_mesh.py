"""A mesh that cannot be is refused with the sizes that could."""

import jax
import pytest

from sharding.mesh import AXES, MeshError, make_mesh, one_device
from sharding.params import kv_copies, placement_of
from tests.sharding.abstract_mesh import mesh_of


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tensor": 0}, "tensor must be at least 1, not 0"),
        ({"heads": 2}, "no axis 'heads'; it has data, pipeline, expert, tensor"),
        ({"pipeline": 4}, "a mesh of pipeline 4 takes 4 devices and there are 3: .* can be 1, 2, 3"),
        (
            {"expert": 2, "tensor": 2},
            "a mesh of expert 2 x tensor 2 takes 4 devices and there are 3: .* can be 1, 2, 3",
        ),
    ],
)
def test_an_impossible_mesh_is_refused_with_what_would_work(sizes: dict[str, int], says: str) -> None:
    with pytest.raises(MeshError, match=says):
        make_mesh(sizes, devices=jax.devices()[:1] * 3)


def test_a_mesh_has_every_axis_and_takes_the_first_devices() -> None:
    mesh = make_mesh({})
    assert mesh.axis_names == AXES
    assert mesh.devices.size == 1
    assert mesh == one_device()


def test_heads_that_do_not_divide_are_refused_with_what_would() -> None:
    with pytest.raises(MeshError, match=r"14 query heads cannot be split 8 ways .*can be 1, 2, 7, 14"):
        placement_of(mesh_of(tensor=8), 14, 2)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "parts", "copies"),
    [(32, 8, 8, 1), (32, 8, 16, 2), (64, 8, 64, 8), (8, 1, 8, 8), (8, 8, 8, 1), (24, 6, 4, 2), (16, 2, 1, 1)],
)
def test_each_device_has_whole_kv_heads_with_their_query_heads(
    heads: int, kv_heads: int, parts: int, copies: int
) -> None:
    assert kv_copies(heads, kv_heads, parts) == copies
    assert kv_heads * copies % parts == 0
    assert heads // kv_heads % copies == 0

"""Routed experts on a mesh give what they give on one device, for one sum over the devices."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array

from models.layers import WeightInit
from models.moe import ClippedSwiglu, RoutedExperts, RouterRule
from models.split_experts import split_experts
from sharding.mesh import MeshError, everywhere, make_mesh
from sharding.params import place_model, placement_of

TOKENS, E, D, F = 24, 8, 16, 20


def layer() -> RoutedExperts:
    init = WeightInit(jnp.float32, 3)
    made = RoutedExperts(init, E, D, F, RouterRule(top_k=2), gate=ClippedSwiglu(), bias=True)
    random = np.random.default_rng(5)
    for bias in (made.gate_up_bias, made.down_bias):
        assert bias is not None
        bias.set_value(jnp.asarray(random.standard_normal(bias.shape, np.float32)))
    return made


@pytest.mark.parametrize("sizes", [{"expert": 8}, {"expert": 2, "tensor": 4}, {"tensor": 8}])
def test_experts_on_a_mesh_give_what_they_give_on_one_device(sizes: dict[str, int]) -> None:
    x = np.random.default_rng(1).standard_normal((TOKENS, D)).astype(np.float32)
    real = np.arange(TOKENS) < TOKENS - 3
    out, load = layer().with_load(jnp.asarray(x), jnp.asarray(real))
    mesh = make_mesh(sizes)
    placed = place_model(layer(), placement_of(mesh, 8, 8))
    split_experts(placed, mesh)
    graph, state = nnx.split(placed)

    @jax.jit
    def run(state: nnx.State, x: Array, real: Array) -> tuple[Array, Array]:
        return nnx.merge(graph, state).with_load(x, real)

    compiled = run.lower(state, *jax.device_put((x, real), everywhere(mesh))).compile()
    same_out, same_load = compiled(state, *jax.device_put((x, real), everywhere(mesh)))
    np.testing.assert_allclose(same_out, out, atol=1e-5)
    np.testing.assert_array_equal(same_load, load)
    assert int(load.sum()) == 2 * (TOKENS - 3)
    assert len(re.findall(r" all-reduce(?:-start)?\(", compiled.as_text())) == 1
    assert not re.findall(r" (all-gather|all-to-all|reduce-scatter|collective-permute)\(", compiled.as_text())


def test_experts_that_do_not_divide_are_refused_with_what_would() -> None:
    mesh = make_mesh({"expert": 3})
    with pytest.raises(MeshError, match="8 experts cannot be split 3 ways over expert: it can be 1, 2, 4, 8"):
        place_model(layer(), replace(placement_of(make_mesh({}), 8, 8), mesh=mesh))

"""Routed experts on a mesh give what they give on one device: by one sum over the devices, or by two all-to-alls."""

import re
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding

from models.layers import WeightInit
from models.moe import ClippedSwiglu, RoutedExperts, RouterRule
from models.split_experts import Wish, split_experts
from sharding.mesh import MeshError, make_mesh
from sharding.params import place_model, placement_of
from sharding.rules import spec_of

KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
TOKENS, E, D, F = 24, 8, 16, 20


def layer(favoured: list[int] | None = None) -> RoutedExperts:
    init = WeightInit(jnp.float32, 3)
    made = RoutedExperts(
        init, E, D, F, RouterRule(top_k=2), gate=ClippedSwiglu(), bias=True, router_bias=favoured is not None
    )
    random = np.random.default_rng(5)
    for bias in (made.gate_up_bias, made.down_bias):
        assert bias is not None
        bias.set_value(jnp.asarray(random.standard_normal(bias.shape, np.float32)))
    if made.router_bias is not None and favoured is not None:
        made.router_bias.set_value(jnp.where(jnp.isin(jnp.arange(E), jnp.asarray(favoured)), 100.0, 0.0))
    return made


SUM, EXCHANGE = {"all-reduce": 1}, {"all-to-all": 2, "all-gather": 1}  # a gather says how many rows go where


@pytest.mark.parametrize(
    ("sizes", "wish", "collectives"),
    [
        ({"expert": 8}, "sum", SUM),
        ({"expert": 2, "tensor": 4}, "sum", SUM),
        ({"tensor": 8}, "sum", SUM),
        ({"data": 2, "expert": 2, "tensor": 2}, "sum", SUM | {"all-gather": 3, "reduce-scatter": 1}),
        ({"data": 8}, "all-to-all", EXCHANGE),
        ({"data": 4, "tensor": 2}, "all-to-all", EXCHANGE | SUM),
        ({"expert": 8}, "all-to-all", EXCHANGE | {"all-gather": 2}),  # the shares of the tokens come together again
        ({"data": 2, "expert": 2, "tensor": 2}, "all-to-all", EXCHANGE | SUM | {"all-gather": 2}),
    ],
)
def test_experts_on_a_mesh_give_what_they_give_on_one_device(
    sizes: dict[str, int], wish: Wish, collectives: dict[str, int]
) -> None:
    x = np.random.default_rng(1).standard_normal((TOKENS, D)).astype(np.float32)
    real = np.arange(TOKENS) < TOKENS - 3
    out, load = layer().with_load(jnp.asarray(x), jnp.asarray(real))
    compiled, (same_out, same_load) = on_mesh(make_mesh(sizes), wish, x, real)
    np.testing.assert_allclose(same_out, out, atol=1e-5)
    np.testing.assert_array_equal(same_load, load)
    assert int(load.sum()) == 2 * (TOKENS - 3)
    found = Counter(re.findall(rf" ({'|'.join(KINDS)})(?:-start)?\(", compiled.as_text()))
    assert found == collectives


@pytest.mark.parametrize("chosen", [[0, 1], [6, 7]])
def test_no_token_is_dropped_where_all_choose_the_experts_of_one_device(chosen: list[int]) -> None:
    x = np.random.default_rng(2).standard_normal((TOKENS - 1, D)).astype(np.float32)  # two devices do not share 23
    real = np.ones(TOKENS - 1, bool)
    out, load = layer(favoured=chosen).with_load(jnp.asarray(x), jnp.asarray(real))
    assert {*np.flatnonzero(np.asarray(load)).tolist()} == {*chosen}
    _, (same_out, same_load) = on_mesh(make_mesh({"expert": 4, "tensor": 2}), "all-to-all", x, real, favoured=chosen)
    np.testing.assert_allclose(same_out, out, atol=1e-5)
    np.testing.assert_array_equal(same_load, load)


def on_mesh(
    mesh: Mesh, wish: Wish, x: np.ndarray, real: np.ndarray, favoured: list[int] | None = None
) -> tuple[jax.stages.Compiled, tuple[Array, Array]]:
    placed = place_model(layer(favoured), placement_of(mesh, 8, 8))
    split_experts(placed, mesh, wish)
    graph, state = nnx.split(placed)

    @jax.jit
    def run(state: nnx.State, x: Array, real: Array) -> tuple[Array, Array]:
        return nnx.merge(graph, state).with_load(x, real)

    given = jax.device_put((x, real), NamedSharding(mesh, spec_of(("tokens",))))
    compiled = run.lower(state, *given).compile()
    return compiled, compiled(state, *given)


def test_experts_that_do_not_divide_are_refused_with_what_would() -> None:
    mesh = make_mesh({"expert": 3})
    with pytest.raises(MeshError, match="8 experts cannot be split 3 ways over data x expert: it can be 1, 2, 4, 8"):
        place_model(layer(), replace(placement_of(make_mesh({}), 8, 8), mesh=mesh))

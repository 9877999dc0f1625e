"""Routed experts against a loop over tokens in float64, and against the hub's own blocks."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from transformers.models.deepseek_v3 import configuration_deepseek_v3, modeling_deepseek_v3
from transformers.models.mixtral import configuration_mixtral, modeling_mixtral
from transformers.models.qwen3_moe import configuration_qwen3_moe, modeling_qwen3_moe

from models.hub import Places, Tensors
from models.layers import WeightInit
from models.moe import (
    ClippedSwiglu,
    ExpertMLPs,
    GroupLimit,
    RoutedExperts,
    RouterRule,
    Routing,
    apply_experts,
    expert_order,
    interleaved_tensors,
    per_expert_tensors,
    route,
    swiglu,
    use_grouped_matmul,
    watch_load,
)
from pallas_kernels.grouped import QuantizedExperts, quantized_experts
from pallas_kernels.reference.grouped_matmul import grouped_matmul

E, D, F = 8, 16, 24
TOLERANCE = 1e-5  # of the largest number; what float32 leaves

RULES = {
    "Mixtral": RouterRule(top_k=2, renormalize=True),
    "Qwen3-MoE, as they are": RouterRule(top_k=3),
    "one expert": RouterRule(top_k=1),
    "Llama 4": RouterRule(top_k=2, score="sigmoid", on_input=True),
    "every expert": RouterRule(top_k=8, renormalize=True),
    "DeepSeek-V2": RouterRule(top_k=3, scale=16.0, limit=GroupLimit(groups=4, kept=2, score="best")),
    "DeepSeek-V3": RouterRule(
        top_k=3,
        score="sigmoid",
        renormalize=True,
        scale=2.5,
        limit=GroupLimit(groups=4, kept=2, score="best two"),
    ),
}


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def layer(rule: RouterRule, **options: Any) -> RoutedExperts:
    """With weights in every place, biases too."""
    module = RoutedExperts(WeightInit(jnp.float32, 3), E, D, F, rule, **options)
    for index, name in enumerate(("router_bias", "choice_bias", "gate_up_bias", "down_bias")):
        param = getattr(module, name)
        if param is not None:
            param[...] = draw(*param.shape, seed=10 + index)
    return module


def choose(scores: np.ndarray, order: np.ndarray, rule: RouterRule) -> dict[int, float]:
    """Of one token: expert -> weight, by sorting."""
    allowed = set(range(len(order)))
    if rule.limit is not None:
        size, best = len(order) // rule.limit.groups, 1 if rule.limit.score == "best" else 2
        of_group = [sum(sorted(order[g * size : (g + 1) * size])[-best:]) for g in range(rule.limit.groups)]
        kept = sorted(range(rule.limit.groups), key=lambda g: -of_group[g])[: rule.limit.kept]
        allowed = {e for g in kept for e in range(g * size, (g + 1) * size)}
    chosen = sorted(allowed, key=lambda e: -order[e])[: rule.top_k]
    total = sum(scores[e] for e in chosen) if rule.renormalize else 1.0
    return {e: scores[e] / total * rule.scale for e in chosen}


def token_by_token(module: RoutedExperts, x: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """The same layer in float64: a loop over tokens, and over the experts of each."""

    def wide(param: nnx.Param | None, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape) if param is None else np.asarray(param[...], np.float64)

    gate_up, down, router = (np.asarray(p[...], np.float64) for p in (module.gate_up, module.down, module.router))
    gate_up_bias, down_bias = wide(module.gate_up_bias, (E, 2, F)), wide(module.down_bias, (E, D))
    out, load = np.zeros(x.shape), np.zeros(E, int)
    for t, row in enumerate(np.asarray(x, np.float64)):
        logits = row @ router + wide(module.router_bias, (E,))
        scores = np.exp(logits) / np.exp(logits).sum() if module.rule.score == "softmax" else 1 / (1 + np.exp(-logits))
        for e, weight in choose(scores, scores + wide(module.choice_bias, (E,)), module.rule).items():
            taken, weight = (weight * row, 1.0) if module.rule.on_input else (row, weight)
            gate, up = taken @ gate_up[e, 0] + gate_up_bias[e, 0], taken @ gate_up[e, 1] + gate_up_bias[e, 1]
            if isinstance(module.gate, ClippedSwiglu):
                gate, up = np.minimum(gate, module.gate.limit), np.clip(up, -module.gate.limit, module.gate.limit) + 1
                hidden = gate / (1 + np.exp(-module.gate.alpha * gate)) * up
            else:
                hidden = gate / (1 + np.exp(-gate)) * up
            out[t] += weight * (hidden @ down[e] + down_bias[e])
            load[e] += 1
    return out, load


def assert_close(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("tokens", [1, 37])
def test_a_layer_is_the_sum_over_each_tokens_experts(rule: RouterRule, tokens: int) -> None:
    module, x = layer(rule, choice_bias=rule.score == "sigmoid"), draw(tokens, D)
    out, load = jax.jit(lambda x: module.with_load(x))(x)
    expected, counted = token_by_token(module, x)
    assert_close(out, expected)
    assert (load == counted).all()
    assert load.sum() == tokens * rule.top_k


def test_who_watches_a_layer_is_told_its_load() -> None:
    module, x = layer(next(iter(RULES.values()))), draw(9, D)
    seen: list[list[int]] = []
    watch_load(module, lambda load: seen.append(np.asarray(load).tolist()))
    out = jax.jit(module)(x)
    jax.effects_barrier()
    assert_close(out, module.with_load(x)[0])
    assert seen == [token_by_token(module, x)[1].tolist()]


def test_biases_and_a_clipped_gate_are_gpt_oss() -> None:
    module = layer(RULES["Mixtral"], bias=True, router_bias=True, gate=ClippedSwiglu(limit=1.5))
    x = draw(21, D)
    assert_close(module(x), token_by_token(module, x)[0])


def test_the_softmax_over_chosen_logits_is_the_renormalized_softmax_over_all() -> None:
    logits = draw(50, E) * 5
    routing = route(logits, RouterRule(top_k=3, renormalize=True))
    best, experts = jax.lax.top_k(logits, 3)
    assert (routing.experts == experts).all()
    assert_close(routing.weights, jax.nn.softmax(best, axis=-1), 1e-6)


def test_a_group_that_is_left_out_has_no_expert_chosen_though_its_bias_is_negative() -> None:
    rule = replace(RULES["DeepSeek-V3"], top_k=4)
    bias = jnp.full((E,), -3.0)  # all scores below zero: a group masked with zeros would win
    experts = np.asarray(route(draw(40, E), rule, bias).experts)
    assert all(len({e // 2 for e in row}) == 2 for row in experts)


def test_every_token_may_go_to_one_expert() -> None:
    module, x = layer(RouterRule(top_k=1)), draw(300, D)
    module.router[...] = jnp.zeros((D, E))
    out, load = module.with_load(x)
    assert load.tolist() == [300, 0, 0, 0, 0, 0, 0, 0]
    assert_close(out, token_by_token(module, x)[0])


def test_padding_hurts_no_token_and_is_not_counted_where_it_is_named() -> None:
    module, x = layer(RULES["Mixtral"]), draw(12, D)
    padded = jnp.concatenate([x, jnp.full((4, D), jnp.nan)])
    assert_close(module(padded)[:12], module(x))
    out, load = module.with_load(padded, real=jnp.arange(16) < 12)
    assert_close(out[:12], module(x))
    assert (out[12:] == 0).all()
    assert load.sum() == 24


def test_undefined_rows_of_the_matmul_reach_no_token() -> None:
    def leaves_nan(x: jax.Array, weights: Any, group_sizes: jax.Array, **options: Any) -> jax.Array:
        out = grouped_matmul(x, weights, group_sizes, **options)
        return jnp.where((jnp.arange(x.shape[0]) < group_sizes.sum())[:, None], out, jnp.nan)

    module, x = layer(RULES["Mixtral"]), draw(16, D)
    real = jnp.arange(16) % 3 > 0
    expected = module.with_load(x, real)[0]
    use_grouped_matmul(module, leaves_nan)
    assert_close(module.with_load(x, real)[0], expected)


def test_the_sums_of_devices_that_share_the_experts_add_up() -> None:
    module, x = layer(RULES["Mixtral"], bias=True), draw(19, D)
    routing, mlps = module.routing(x), module.mlps()
    total, loads = jnp.zeros_like(x), []
    for first in range(0, E, 2):
        here = ExpertMLPs(*(part[first : first + 2] for part in mlps))
        mine = Routing(routing.experts - first, routing.weights)
        part, load = apply_experts(x, mine, here, 2, swiglu, grouped_matmul)
        total, loads = total + part, [*loads, *load.tolist()]
    assert_close(total, module(x))
    assert loads == module.with_load(x)[1].tolist()


def test_order_and_places_undo_each_other() -> None:
    experts = jnp.asarray([[3, 1], [9, 3], [0, -1], [3, 0]])
    order = expert_order(experts, 4)
    assert order.experts.tolist() == [0, 0, 1, 3, 3, 3, 4, 4]
    assert order.pairs.tolist() == [4, 7, 1, 0, 3, 6, 2, 5]
    assert order.pairs[order.places].tolist() == list(range(8))
    assert order.group_sizes.tolist() == [2, 1, 0, 3]


def test_eight_bit_experts_run_and_stay_near() -> None:
    module, x = layer(RULES["Mixtral"]), draw(9, D)
    mlps = module.mlps()
    held = mlps._replace(gate_up=quantized_experts(mlps.gate_up, jnp.int8), down=quantized_experts(mlps.down, jnp.int8))
    assert isinstance(held.down, QuantizedExperts)
    out, _ = apply_experts(x, module.routing(x), held, E, swiglu, grouped_matmul)
    assert_close(out, module(x), 0.02)


def test_stacked_layers_hold_what_a_list_of_them_holds() -> None:
    def block(init: WeightInit) -> RoutedExperts:
        return RoutedExperts(init, E, D, F, RULES["Mixtral"])

    stacked = WeightInit(jnp.float32, None).layers(3, block)
    shapes = {path[0]: leaf.get_value().shape for path, leaf in nnx.to_flat_state(nnx.state(stacked))}
    assert shapes == {"router": (3, D, E), "gate_up": (3, E, 2, D, F), "down": (3, E, F, D)}
    for path, leaf in nnx.to_flat_state(nnx.state(stacked)):
        assert len(leaf.get_metadata("axes")) == len(shapes[path[0]])


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (RouterRule(top_k=9), "top_k 9 is not within 1..8 experts"),
        (RouterRule(top_k=5, limit=GroupLimit(groups=4, kept=2, score="best")), "5 of 8 experts cannot be chosen"),
        (RouterRule(top_k=1, limit=GroupLimit(groups=3, kept=2, score="best")), "from 2 of 3 groups"),
        (RouterRule(top_k=1, limit=GroupLimit(groups=8, kept=2, score="best two")), "no best two"),
    ],
)
def test_a_rule_that_the_experts_cannot_meet_is_refused(rule: RouterRule, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        layer(rule)


def filled(module: RoutedExperts, table: Tensors, tensors: dict[str, np.ndarray]) -> RoutedExperts:
    """`module` with a checkpoint's tensors in their places."""
    assert set(table) == set(tensors)
    for name, tensor in table.items():
        assert tensor is not None
        assert tensors[name].shape == tensor.shape, name
        param = getattr(module, tensor.path[-1])
        values = np.array(param[...])
        values[tensor.part] = tensors[name].reshape(tensor.split).transpose(tensor.order)
        param[...] = jnp.asarray(values)
    return module


def per_expert(block: Any, names: tuple[str, str, str]) -> dict[str, np.ndarray]:
    """The hub's block as its checkpoints hold it."""
    tensors = {}
    gate_up, down = (p.detach().numpy() for p in (block.experts.gate_up_proj, block.experts.down_proj))
    for e in range(E):
        gate, up = np.split(gate_up[e], 2)
        for name, values in zip(names, (gate, up, down[e]), strict=True):
            tensors[f"mlp.experts.{e}.{name}.weight"] = values
    return tensors


def randomized(block: torch.nn.Module) -> Any:
    torch.manual_seed(7)
    for param in block.parameters():
        torch.nn.init.normal_(param, std=0.3)
    return block.eval()


def hubs(block: Any, x: jax.Array) -> np.ndarray:
    with torch.no_grad():
        out = block(torch.from_numpy(np.array(x))[None])
    return (out[0] if isinstance(out, tuple) else out).reshape(x.shape).numpy()


PLACES = Places(sizes={"D": D, "F": F, "E": E})


@pytest.mark.parametrize("tokens", [1, 33])
def test_mixtrals_block_gives_the_same(tokens: int) -> None:
    config = configuration_mixtral.MixtralConfig(
        hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=2
    )
    theirs, x = randomized(modeling_mixtral.MixtralSparseMoeBlock(config)), draw(tokens, D)
    names = ("w1", "w3", "w2")
    ours = filled(layer(RULES["Mixtral"]), per_expert_tensors(PLACES, "mlp.", "mlp", names), per_expert(theirs, names))
    ours.router[...] = jnp.asarray(theirs.gate.weight.detach().numpy().T)
    assert_close(ours(x), hubs(theirs, x))


@pytest.mark.parametrize("renormalize", [True, False])
def test_qwen3_moes_block_gives_the_same(renormalize: bool) -> None:
    config = configuration_qwen3_moe.Qwen3MoeConfig(
        hidden_size=D, moe_intermediate_size=F, num_experts=E, num_experts_per_tok=3, norm_topk_prob=renormalize
    )
    theirs, x = randomized(modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(config)), draw(33, D)
    names = ("gate_proj", "up_proj", "down_proj")
    rule = RouterRule(top_k=3, renormalize=renormalize)
    ours = filled(layer(rule), per_expert_tensors(PLACES, "mlp.", "mlp"), per_expert(theirs, names))
    ours.router[...] = jnp.asarray(theirs.gate.weight.detach().numpy().T)
    assert_close(ours(x), hubs(theirs, x))


def test_deepseek_v3s_block_gives_the_same_but_for_its_shared_expert() -> None:
    config = configuration_deepseek_v3.DeepseekV3Config(
        hidden_size=D, moe_intermediate_size=F, n_routed_experts=E, num_experts_per_tok=3, n_group=4, topk_group=2
    )
    theirs, x = randomized(modeling_deepseek_v3.DeepseekV3MoE(config)), draw(33, D)
    theirs.gate.e_score_correction_bias[:] = torch.linspace(0.1, 0.5, E)
    names = ("gate_proj", "up_proj", "down_proj")
    ours = layer(RULES["DeepSeek-V3"], choice_bias=True)
    filled(ours, per_expert_tensors(PLACES, "mlp.", "mlp"), per_expert(theirs, names))
    ours.router[...] = jnp.asarray(theirs.gate.weight.detach().numpy().T)
    assert ours.choice_bias is not None
    ours.choice_bias[...] = jnp.asarray(theirs.gate.e_score_correction_bias.numpy())
    assert_close(ours(x), hubs(theirs, x) - hubs(theirs.shared_experts, x))


def test_gpt_oss_tensors_are_taken_apart_column_by_column() -> None:
    module = layer(RULES["Mixtral"], bias=True, router_bias=True)
    fused, fused_bias = np.asarray(draw(E, D, 2 * F)), np.asarray(draw(E, 2 * F, seed=1))
    tensors = {
        "mlp.experts.gate_up_proj": fused,
        "mlp.experts.gate_up_proj_bias": fused_bias,
        "mlp.experts.down_proj": np.asarray(draw(E, F, D, seed=2)),
        "mlp.experts.down_proj_bias": np.asarray(draw(E, D, seed=3)),
    }
    filled(module, interleaved_tensors(PLACES, "mlp.", "mlp"), tensors)
    mlps = module.mlps()
    assert mlps.gate_up_bias is not None
    assert (np.asarray(mlps.gate_up[:, 0]) == fused[:, :, ::2]).all()
    assert (np.asarray(mlps.gate_up[:, 1]) == fused[:, :, 1::2]).all()
    assert (np.asarray(mlps.gate_up_bias[:, 1]) == fused_bias[:, 1::2]).all()
    assert (np.asarray(mlps.down) == tensors["mlp.experts.down_proj"]).all()

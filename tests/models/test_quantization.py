"""Weights in fewer bits: the rounding and the products against float64, and every kind of model within its error."""

import dataclasses
import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from models.layers import contract
from models.moe import RoutedExperts
from models.quantization import (
    Products,
    Quantization,
    QuantizationError,
    QuantizedWeight,
    Scheme,
    at_load,
    parameters_of,
    quantize_model,
)
from models.quantization_rounding import rounded
from models.quantized_array import QuantizedArray, WeightForm, block_rows
from models.registry import family_of
from tests.models.forward import dense_logits

KINDS = get_args(Quantization)
ROWS, COLUMNS, TOKENS, GROUP = 96, 24, 5, 16


def form_of(kind: Any, **changes: Any) -> WeightForm:
    group = GROUP if kind == "int4" else None
    form = WeightForm(kind=kind, shape=(ROWS, 4, 6), names=("model", None, None), summed=(0,), group=group)
    return dataclasses.replace(form, **changes)


def array_of(weight: np.ndarray, form: WeightForm) -> QuantizedArray:
    parts = {role: jnp.asarray(values) for role, values in rounded(weight, form).items()}
    return QuantizedArray(parts["values"], parts["scales"], None, None, form)


def oracle(weight: np.ndarray, form: WeightForm) -> np.ndarray:
    """The weight that its numbers stand for, float64: written a group at a time."""
    flat = weight.reshape(ROWS, COLUMNS).astype(np.float64)
    out = np.empty_like(flat)
    size = form.group or ROWS
    for begin in range(0, ROWS, size):
        for column in range(COLUMNS):
            numbers = flat[begin : begin + size, column]
            if form.kind == "int4":
                scale = numbers[np.abs(numbers).argmax()] / -8
                codes = np.clip(np.rint(numbers / scale), -8, 7)
            elif form.kind == "int8":
                scale = np.abs(numbers).max() / 127
                codes = np.rint(numbers / scale)
            else:
                scale = np.abs(numbers).max() / 448
                codes = (numbers / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
            out[begin : begin + size, column] = codes * scale
    return out.reshape(weight.shape)


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(ROWS, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_rounded_as_its_formula_says(weight: np.ndarray, kind: Quantization) -> None:
    form = form_of(kind)
    got, right = np.asarray(array_of(weight, form).wide(jnp.float32)), oracle(weight, form)
    # A number half-way between two may go to either, as its ratio is rounded to float32.
    assert (np.abs(got - right) > 1e-5).mean() < 0.002
    assert np.abs(got - weight).max() <= {"int8": 0.5 / 127, "fp8": 1 / 16, "int4": 1 / 8}[kind] * np.abs(weight).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocked", [False, True])
def test_a_product_is_that_of_the_rounded_weight(weight: np.ndarray, kind: Quantization, blocked: bool) -> None:
    array = array_of(weight, form_of(kind, blocked=blocked))
    x = np.random.default_rng(6).normal(size=(TOKENS, ROWS)).astype(np.float32)
    right = np.einsum("td,dkc->tkc", x.astype(np.float64), np.asarray(array.wide(jnp.float32), np.float64))
    got = contract("td,dkc->tkc", jnp.asarray(x), array)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-4)
    narrow = contract("td,dkc->tkc", jnp.asarray(x, jnp.bfloat16), array)
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), right, rtol=0.05, atol=0.3)


def test_two_summed_dimensions_are_one(weight: np.ndarray) -> None:
    form = form_of("int4", shape=(4, 24, 24), names=("heads", None, "model"), summed=(0, 1), group=8)
    heads = np.random.default_rng(7).normal(size=(4, 24, 24)).astype(np.float32)
    x = np.random.default_rng(8).normal(size=(TOKENS, 4, 24)).astype(np.float32)
    for blocked in (False, True):
        array = array_of(heads, dataclasses.replace(form, blocked=blocked))
        right = np.einsum("thc,hcd->td", x, np.asarray(array.wide(jnp.float32)))
        np.testing.assert_allclose(contract("thc,hcd->td", jnp.asarray(x), array), right, rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_summed_in_two_ways_is_widened() -> None:
    """As DeepSeek's, whose keys are multiplied from one side and whose values from the other."""
    weight = np.random.default_rng(9).normal(size=(3, 10, 16)).astype(np.float32)
    form = WeightForm(kind="int8", shape=(3, 10, 16), names=("heads", None, None), summed=(2,), blocked=True)
    array = array_of(weight, form)
    wide, x = np.asarray(array.wide(jnp.float32)), np.ones((TOKENS, 3, 6), np.float32)
    got = contract("thn,hnz->thz", jnp.asarray(x), array[:, :6])
    np.testing.assert_allclose(got, np.einsum("thn,hnz->thz", x, wide[:, :6]), rtol=1e-4, atol=1e-4)
    got = contract("thz,hwz->thw", jnp.ones((TOKENS, 3, 16)), array[:, 6:])
    np.testing.assert_allclose(got, np.einsum("thz,hwz->thw", np.ones((TOKENS, 3, 16)), wide[:, 6:]), rtol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_activations_are_rounded_under_a_scale_of_each_token(weight: np.ndarray, kind: Any) -> None:
    array = array_of(weight, form_of(kind, activations=kind))
    x = np.random.default_rng(6).normal(size=(TOKENS, ROWS)).astype(np.float32) * np.logspace(-3, 3, TOKENS)[:, None]
    limit = 127 if kind == "int8" else 448
    scales = np.abs(x).max(axis=1, keepdims=True) / limit
    ratio = (x / scales).astype(np.float32)
    codes = np.rint(ratio) if kind == "int8" else ratio.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    right = np.einsum("td,dkc->tkc", codes * scales, np.asarray(array.wide(jnp.float32), np.float64))
    got = np.asarray(contract("td,dkc->tkc", jnp.asarray(x, jnp.float32), array))
    assert (np.abs(got - right) <= 2e-3 * np.abs(right).max(axis=(1, 2), keepdims=True)).all()


def test_blocks_are_whole_groups_that_divide_the_rows() -> None:
    assert block_rows(1, 1024, form_of("int8")) == 128
    assert block_rows(512, 1024, form_of("int8")) == 512
    assert block_rows(1, 1376, form_of("int4", group=32)) == 32
    assert block_rows(1, 1024, form_of("int4", group=256)) == 256
    assert block_rows(1, 97 * 2, form_of("int8")) == 97 * 2


# Logits' standard deviation over that of the difference: what these small random models, whose errors nothing averages
# out, keep of them. Large trained models keep more (docs/quantization.md).
KEPT = {"int8": 12.0, "fp8": 5.0, "int4": 1.2}
IDS = np.arange(12) * 7
SMALL = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {"architectures": ["LlamaForCausalLM"]},
    "tied": {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "experts": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    "latent": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "first_k_dense_replace": 1,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
    },
}


def built(name: str, kind: Quantization | None, products: Products, layers: Any = "list") -> Any:
    fields = SMALL | FAMILIES[name]
    family = family_of(fields)
    model = family.build(family.parse(fields), jnp.float32, 3, layers=layers)
    if kind is not None:
        quantize_model(model, at_load(kind, 32 if kind == "int4" else None), products)
    return model


@functools.cache
def logits_in_full(name: str) -> np.ndarray:
    return dense_logits(built(name, None, Products()), IDS)


# Each kind with a family whose weights it meets in another way; a program of each takes seconds to compile.
PAIRS = (("dense", "int8"), ("dense", "int4"), ("tied", "fp8"), ("experts", "int4"), ("latent", "int8"))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_family_keeps_its_logits_within_the_error_of_its_kind(name: str, kind: Quantization) -> None:
    right = logits_in_full(name)
    got = dense_logits(built(name, kind, Products(blocked=True)), IDS)
    assert np.std(right) / np.std(got - right) > KEPT[kind]


def test_stacked_layers_give_what_a_list_of_them_does() -> None:
    model = built("experts", "int4", Products())
    leaves = dict(nnx.to_flat_state(nnx.state(model)))
    stacked = built("experts", "int4", Products(), "stacked")
    values = {path: variable.get_value() for path, variable in nnx.to_flat_state(nnx.state(stacked))}
    assert values["layers", "qkv", "weight", "values"].shape[0] == 2
    one = leaves["layers", 0, "qkv", "weight", "values"].get_value()
    assert one.shape == values["layers", "qkv", "weight", "values"].shape[1:]
    assert np.isfinite(dense_logits(stacked, np.arange(5))).all()


def test_what_stays_as_it_is() -> None:
    model = built("experts", "int8", Products())
    wide = {path[-1] for path, variable in nnx.to_flat_state(nnx.state(model)) if variable.get_value().ndim > 1}
    assert wide == {"table", "router", "values", "scales"} | {"weight"}  # of the head
    assert isinstance(next(m for _, m in nnx.iter_modules(model) if isinstance(m, RoutedExperts)).down, QuantizedWeight)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_whatever_they_take(kind: Quantization) -> None:
    right = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(built("dense", None, Products()))))
    variables = [variable for _, variable in nnx.to_flat_state(nnx.state(built("dense", kind, Products())))]
    assert sum(map(parameters_of, variables)) == right


def test_refusals_say_what_would_be_right() -> None:
    with pytest.raises(QuantizationError, match="int8, int4, fp8, not 'int3'"):
        at_load("int3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(QuantizationError, match="a group is for int4"):
        at_load("int8", 128)
    with pytest.raises(QuantizationError, match="activations in int8 go with weights in int8"):
        built("dense", "int4", Products(activations="int8"))
    with pytest.raises(QuantizationError, match="kept in full: ask for both"):
        quantize_model(built("dense", None, Products()), None, Products(activations="int8"))
    reordered, experts = Scheme(kind="int4", group=16, reordered=True), built("experts", None, Products())
    with pytest.raises(QuantizationError, match=r"desc_act\) are not offered for this weight"):
        quantize_model(experts, lambda path: reordered, Products())
    with pytest.raises(QuantizationError, match="64 rows cannot be split 1 ways in groups of 5"):
        quantize_model(built("dense", None, Products()), lambda path: Scheme(kind="int8", group=5), Products())

from typing import Any

import pytest

from serving.generation.context_window import context_window

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"type": "linear", "factor": 2.5}
MADE_FOR = 100


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 100),
        ({"rope_scaling": None}, 100),
        ({"rope_scaling": YARN}, 256),
        ({"rope_parameters": {**YARN, "rope_theta": 1e6}}, 256),
        ({"rope_parameters": {}, "rope_scaling": {**YARN, "factor": 4}}, 256),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 400),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 32}, 128),
        ({"rope_scaling": {**YARN, "factor": 1.5}}, 100),
        ({"rope_scaling": {key: value for key, value in YARN.items() if key != "factor"}}, 100),
        ({"rope_scaling": LINEAR}, 250),
        ({"rope_scaling": {**LINEAR, "factor": 0.5}}, 100),
        # Of these max_position_embeddings says it.
        ({"rope_scaling": {**YARN, "rope_type": "llama3"}}, 100),
        ({"rope_scaling": {**YARN, "rope_type": "longrope"}}, 100),
        ({"rope_scaling": {**LINEAR, "type": "dynamic"}}, 100),
        ({"rope_scaling": LINEAR, "rope_local_base_freq": 1e4}, 100),
        ({"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}}, 100),
    ],
)
def test_yarn_and_linear_scaling_reach_further_than_the_model_was_made_for(fields: dict[str, Any], most: int) -> None:
    window = context_window(fields, MADE_FOR)
    assert (window.made_for, window.most) == (MADE_FOR, most)


@pytest.mark.parametrize(
    "scaling", [[4.0], "yarn", {**YARN, "factor": "4"}, {**YARN, "factor": True}, {**YARN, "factor": -4}]
)
def test_what_is_malformed_stretches_nothing(scaling: Any) -> None:
    assert context_window({"rope_scaling": scaling}, MADE_FOR).most == MADE_FOR


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 10**400])
def test_a_factor_that_is_no_size_stretches_nothing(factor: Any) -> None:
    assert context_window({"rope_scaling": {**LINEAR, "factor": factor}}, MADE_FOR).most == MADE_FOR

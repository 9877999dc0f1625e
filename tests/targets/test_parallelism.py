"""Each parallelism compiled for a chip that is not at hand, with no collective more than it must have."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from serving.config import Deployment, EngineConfig, MeshConfig, ModelConfig, PlanConfig
from serving.planner.collectives import HAND_OVER
from serving.planner.deployment_plan import Plan, make_plan

D, LAYERS, SEQUENCES = 1024, 4, 16
SMALL = f"""
vocab_size = 32000
hidden_size = {D}
num_hidden_layers = {LAYERS}
num_attention_heads = 8
num_key_value_heads = 8
head_dim = 128
hidden_act = "silu"
max_position_embeddings = 4096
"""
DENSE = SMALL + 'architectures = ["LlamaForCausalLM"]\nintermediate_size = 2048\n'
ROUTED = SMALL + 'architectures = ["MixtralForCausalLM"]\nintermediate_size = 1024\nnum_local_experts = 8\n'


def planned(folder: Path, topology: str, mesh: MeshConfig, model: str, tokens: int = SEQUENCES, **engine: Any) -> Plan:
    """With a decode step of SEQUENCES tokens, and one of `tokens`."""
    architecture = folder / "small.toml"
    architecture.write_text(model, encoding="utf-8")
    limits = {"max_num_seqs": SEQUENCES, "max_num_batched_tokens": tokens, "page_size": 64, "max_model_len": 4096}
    return make_plan(
        Deployment(
            name="small",
            model=ModelConfig(checkpoint=folder, architecture=architecture),
            engine=EngineConfig(**limits, **engine),
            mesh=mesh,
            plan=PlanConfig(topology=topology),
        ),
        None,
    )


def of_hidden_states(plan: Plan, shards: int = 1, tokens: int = SEQUENCES, parts: int = 1) -> Counter[str]:
    """How often a step sends something as large as a part of the hidden states of a data shard, by kind."""
    found: Counter[str] = Counter()
    for one, count in plan.steps[tokens].collectives.items():
        if one.size >= tokens // shards // parts * D * 2:
            found[one.kind] += count
    return found


@pytest.mark.parametrize(
    ("topology", "mesh"), [("v6e:2x2", MeshConfig(data=2, tensor=2)), ("h100:4", MeshConfig(data=2, tensor=2))]
)
def test_data_shards_add_no_message_to_the_two_sums_of_a_layer(tmp_path: Path, topology: str, mesh: MeshConfig) -> None:
    plan = planned(tmp_path, topology, mesh, DENSE)
    assert of_hidden_states(plan, shards=2) == {"all-reduce": 2 * LAYERS + 1}  # one for the split embedding
    largest = max(plan.steps[SEQUENCES].collectives, key=lambda one: one.size)
    assert (largest.kind, largest.group) == ("all-reduce", 2)
    assert plan.fits


def test_the_stages_of_a_pipeline_hand_over_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, "v5p:2x2x1", MeshConfig(pipeline=2, tensor=2), DENSE)
    lane = SEQUENCES // 2
    found = plan.steps[lane].collectives
    large = Counter(kind for one, count in found.items() if one.size == lane * D * 2 for kind in [one.kind] * count)
    assert large == {"all-reduce": 2 * LAYERS + 1, HAND_OVER: 1}
    assert plan.fits


def test_experts_over_data_shards_cost_two_ragged_all_to_alls_a_layer_and_attention_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, "h200:4", MeshConfig(data=4), ROUTED, expert_exchange="all-to-all")
    assert set(plan.expert_ways.values()) == {"ragged all-to-all"}
    assert of_hidden_states(plan, shards=4) == {"ragged-all-to-all": 2 * LAYERS}
    assert plan.fits


def test_experts_by_sums_cost_what_a_dense_layer_does(tmp_path: Path) -> None:
    plan = planned(tmp_path, "v5e:2x2", MeshConfig(expert=4), ROUTED)
    assert set(plan.expert_ways.values()) == {"sum"}
    assert of_hidden_states(plan) == {"all-reduce": 2 * LAYERS + 1}
    assert plan.fits


def test_a_long_step_on_gpus_scatters_sums_and_gathers_before_products_and_sends_half(tmp_path: Path) -> None:
    whole, split = (
        planned(tmp_path, "h100:4", MeshConfig(tensor=4), DENSE, 2048, sequence_parallel_tokens=fewest)
        for fewest in (0, None)
    )
    assert of_hidden_states(whole, tokens=2048) == {"all-reduce": 2 * LAYERS + 1}
    found = of_hidden_states(split, tokens=2048, parts=4)
    assert found == {"reduce-scatter": 2 * LAYERS + 1, "all-gather": 2 * LAYERS + 1}
    assert split.steps[2048].sent < 0.55 * whole.steps[2048].sent
    assert split.steps[2048].temporaries < 0.5 * whole.steps[2048].temporaries
    assert of_hidden_states(split) == {"all-reduce": 2 * LAYERS + 1}

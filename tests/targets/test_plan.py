"""A deployment is planned with the real compilers and no hardware."""

import dataclasses
from pathlib import Path

import pytest

from serving.config import Deployment, EmbeddingsConfig, EngineConfig, MeshConfig, ModelConfig, PlanConfig
from serving.errors import ConfigError
from serving.planner.deployment_plan import make_plan
from serving.planner.report import plan_record
from serving.settings.model_embeddings import ModelEmbeddingsConfig
from tests.fakes.tiny_encoder import save_tiny_encoder

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALL = """
architectures = ["LlamaForCausalLM"]
vocab_size = 32000
hidden_size = 2048
intermediate_size = 5632
num_hidden_layers = {layers}
num_attention_heads = 16
num_key_value_heads = 8
head_dim = 128
hidden_act = "silu"
max_position_embeddings = 4096
"""


def deployment(folder: Path, topology: str, tensor: int, *, layers: int = 4, max_model_len: int = 4096) -> Deployment:
    architecture = folder / "small.toml"
    architecture.write_text(SMALL.format(layers=layers), encoding="utf-8")
    return Deployment(
        name="small",
        model=ModelConfig(checkpoint=folder, architecture=architecture),
        engine=EngineConfig(max_num_seqs=16, max_num_batched_tokens=256, page_size=64, max_model_len=max_model_len),
        mesh=MeshConfig(tensor=tensor),
        plan=PlanConfig(topology=topology),
    )


def test_a_plan_counts_memory_and_the_two_sums_of_each_layer(tmp_path: Path) -> None:
    embeds = {
        "embeddings": EmbeddingsConfig(checkpoint=save_tiny_encoder(tmp_path / "encoder"), name="e", max_tokens=40),
        "model_embeddings": ModelEmbeddingsConfig(),
    }
    plan = make_plan(dataclasses.replace(deployment(tmp_path, "v5e:2x2", tensor=4), **embeds), None)
    layer = 2048 * 128 * (16 + 8 + 8 + 16) + 3 * 2048 * 5632
    whole = 4 * layer + 2 * 32000 * 2048
    assert plan.holdings.parameters == whole + 9 * 2048
    assert plan.holdings.weights == (whole // 4 + 9 * 2048) * 2
    assert plan.holdings.position == 4 * 2 * 2 * 128 * 2
    step = plan.steps[16]
    sums = {one: count for one, count in step.collectives.items() if one.size == 16 * 2048 * 2}
    assert list(sums.values()) == [2 * 4 + 1]  # attention and MLP of each layer, and the split embedding
    assert {one.group for one in step.collectives} == {4}
    encoder, pooling = plan.beside
    assert plan.fixed == plan.holdings.weights + plan.holdings.rows + encoder.weights + pooling.sums
    assert pooling.sums == 16 * 2048 * 4
    assert list(plan.temporaries_beside) == ["encoder"]
    assert plan.fits
    assert plan.advice == []
    assert plan_record(plan)["context_tokens_that_fit"] == plan.positions


def test_a_model_that_does_not_fit_is_told_which_mesh_would(tmp_path: Path) -> None:
    # 10.9e9 parameters take 21.8 GB: too much for a chip of 15.75 GiB, half of it is not.
    plan = make_plan(deployment(tmp_path, "v5e:2x2", tensor=1, layers=230), None)
    assert not plan.fits
    assert any("mesh.tensor = 2" in line for line in plan.advice)
    better = make_plan(deployment(tmp_path, "v5e:2x2", tensor=2, layers=230), None)
    assert better.fits


@pytest.mark.parametrize(
    ("topology", "says"), [(None, "--topology"), ("a100:8", "a100"), ("v5e:3x5", "v5e:3x5"), ("v5e:2x2", "tensor 8")]
)
def test_what_cannot_be_planned_is_refused_by_name(tmp_path: Path, topology: str | None, says: str) -> None:
    wanted = deployment(tmp_path, "v5e:2x2", tensor=8)
    unset = Deployment(name="small", model=wanted.model, engine=wanted.engine, mesh=wanted.mesh)
    with pytest.raises(ConfigError, match=says):
        make_plan(unset, topology)

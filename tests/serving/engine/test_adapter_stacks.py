"""Slots on the devices, as a deployment asks for them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from models import checkpoint
from pallas_kernels.reference.grouped_matmul import grouped_matmul
from serving.config import ClusterConfig, Deployment, ModelConfig, load_deployment
from serving.engine.adapter_stacks import AdapterStacks, stacks_for
from serving.errors import ConfigError
from serving.settings.adapters import AdaptersConfig
from sharding.mesh import one_device
from sharding.params import Placement
from tests.fakes import tiny_adapters
from tests.models import tiny_checkpoint


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    tiny_checkpoint.write(tmp_path)
    return Deployment(name="tiny", model=ModelConfig(checkpoint=tmp_path), adapters=AdaptersConfig(slots=2, max_rank=8))


def stacks(deployment: Deployment, body: Any = "reference") -> AdapterStacks | None:
    planned, *_ = checkpoint.abstract(deployment.model.checkpoint, jnp.float32)
    home = Placement(one_device(), kv_copies=1)
    return stacks_for(deployment, planned, home, jnp.float32, grouped_matmul, body)


def test_slots_are_as_many_and_as_wide_as_the_deployment_says(deployment: Deployment) -> None:
    made = stacks(deployment)
    assert made is not None
    assert made.slots == 2
    assert made.layout.offered == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert {leaf.rank for leaf in made.layout.leaves} == {24, 8, 16}
    assert made.nbytes == sum(array.nbytes for array in made.arrays)


def test_on_a_gpu_ranks_are_multiples_of_what_its_kernel_takes(deployment: Deployment) -> None:
    made = stacks(deployment, "gpu")
    assert made is not None
    assert {leaf.rank for leaf in made.layout.leaves} == {64}


def test_without_slots_nothing_is_kept(deployment: Deployment) -> None:
    assert stacks(replace(deployment, adapters=AdaptersConfig())) is None


def test_a_target_that_the_model_lacks_and_several_hosts_are_refused(deployment: Deployment) -> None:
    with pytest.raises(ConfigError, match="w_proj is no target of this model"):
        stacks(replace(deployment, adapters=AdaptersConfig(slots=1, targets=("w_proj",))))
    with pytest.raises(ConfigError, match=r"adapters.slots is above 0, and .* cluster.processes"):
        stacks(replace(deployment, cluster=ClusterConfig(processes=2, coordinator="10.0.0.1:7200")))


def test_an_adapter_of_the_deployment_that_cannot_be_loaded_ends_the_start(
    deployment: Deployment, tmp_path: Path
) -> None:
    tiny_adapters.write_adapter(tmp_path / "poet", 0, config=tiny_checkpoint.CONFIG)
    named = {"poet": tmp_path / "poet"}
    assert stacks(replace(deployment, adapters=AdaptersConfig(slots=1, named=named))) is not None
    with pytest.raises(ConfigError, match=r"adapters\.named\.prose: .*/prose/adapter_config\.json: there is no"):
        stacks(replace(deployment, adapters=AdaptersConfig(slots=1, named={**named, "prose": tmp_path / "prose"})))
    with pytest.raises(ConfigError, match=r"adapters\.named\.poet: .* r is 4, but adapters\.max_rank is 2"):
        stacks(replace(deployment, adapters=AdaptersConfig(slots=1, max_rank=2, named=named)))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('[adapters]\nfolder = "x"', "adapters.slots must be at least 1"),
        ('[adapters]\nslots = 1\n[adapters.named]\n"a:b" = "x"', "adapters.named has 'a:b'"),
        ('[adapters]\nslots = 1\n[adapters.named]\ntiny = "x"', "which is the name of a model"),
        ("[adapters]\nslots = 1\n[mesh]\npipeline = 2", "not offered where mesh.pipeline is above 1"),
        ("[adapters]\nslots = -1", r"adapters.slots must be in 0 \.\. 1024"),
    ],
)
def test_a_table_that_cannot_be_served_is_refused_by_name(lines: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(f'name = "tiny"\n[model]\ncheckpoint = "here"\n{lines}\n')
    with pytest.raises(ConfigError, match=said):
        load_deployment(path)

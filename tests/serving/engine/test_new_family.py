"""One file adds a model family: it loads from a checkpoint and its tokens come out of the engine."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from models import checkpoint
from models.errors import CheckpointError
from models.registry import FAMILIES
from pallas_kernels.dispatch import attention_body
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.local import start_local_engine
from serving.engine.request import GenerateRequest, SamplingParams
from tests.fakes import toy_family
from tests.models.forward import dense_logits

CONFIG = {
    "architectures": list(toy_family.architectures),
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attention_window": 5,
}
PROMPT, NEW = (7, 3, 60, 11, 2, 2, 19, 33, 48), 12
LIMITS = ExecutorLimits(max_num_seqs=2, max_model_len=64, page_size=4, num_pages=32, token_buckets=(2, 16))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    table = toy_family.tensors(toy_family.parse(CONFIG))
    weights = {name: random.normal(size=entry.shape).astype(np.float32) for name, entry in table.items() if entry}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


async def test_a_family_in_one_file_is_served(directory: Path) -> None:
    model, shape, _ = checkpoint.load(directory, jnp.float32, layers="list", families=(*FAMILIES, toy_family))
    executor = Executor(model, shape, LIMITS, attention_body("reference"), jnp.dtype("float32"))
    deployment = Deployment(name="toy", model=ModelConfig(checkpoint=directory), engine=EngineConfig())
    engine = start_local_engine(deployment, executor, startup_seconds=0.0)
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW)
    request = GenerateRequest(request_id="one", prompt_token_ids=PROMPT, sampling=sampling)
    drawn = [token async for event in engine.generate(request) for token in event.token_ids]
    await engine.close()
    text = np.array([*PROMPT, *drawn])
    assert len(drawn) == NEW
    assert drawn == dense_logits(model, text)[len(PROMPT) - 1 : -1].argmax(axis=-1).tolist()


def test_a_family_that_nobody_passed_is_not_known(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="ToyForCausalLM"):
        checkpoint.load(directory, jnp.float32)

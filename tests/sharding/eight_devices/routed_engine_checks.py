"""Families with routed experts through the whole engine: on a mesh as on one device, over pages as without."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.forward import dense_logits
from tests.sharding.eight_devices.tiny_engine import CONFIG, ROUNDING, executor, family, requests, serve, ties


@pytest.mark.parametrize("name", ["GptOssForCausalLM", "DeepseekV3ForCausalLM"])
def test_experts_on_a_mesh_give_the_tokens_of_one_device(name: str) -> None:
    alone = serve(executor(name, {}, layers="stacked", sliding_window=7))
    assert ties(alone, serve(executor(name, {"expert": 2, "tensor": 2}, layers="stacked", sliding_window=7))) <= 1
    found = family(name)
    parsed = found.parse(CONFIG | {"architectures": [name], "sliding_window": 7})
    model = found.build(parsed, jnp.dtype("float32"), layers="stacked")
    prompt = list(requests()[0].prompt_token_ids)
    logits = dense_logits(model, np.asarray(prompt + alone[0].tokens))[len(prompt) - 1 : -1]
    chosen = logits[np.arange(len(alone[0].tokens)), alone[0].tokens]
    assert (logits.max(axis=-1) - chosen < ROUNDING).all()

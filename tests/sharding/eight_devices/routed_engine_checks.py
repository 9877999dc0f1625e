"""Families with routed experts through the whole engine: on a mesh as on one device, over pages as without."""

import jax.numpy as jnp
import numpy as np
import pytest

from models.split_experts import Wish
from tests.models.forward import dense_logits
from tests.sharding.eight_devices.tiny_engine import CONFIG, ROUNDING, executor, family, requests, serve, ties


@pytest.mark.parametrize(
    ("name", "sizes", "exchange"),
    [
        ("GptOssForCausalLM", {"expert": 2, "tensor": 2}, "sum"),
        ("DeepseekV3ForCausalLM", {"data": 2, "pipeline": 2, "expert": 2}, "all-to-all"),
    ],
)
def test_experts_on_a_mesh_give_the_tokens_of_one_device(name: str, sizes: dict[str, int], exchange: Wish) -> None:
    alone = serve(executor(name, {}, layers="stacked", sliding_window=7))
    split = executor(name, sizes, layers="stacked", sliding_window=7, exchange=exchange)
    assert ties(alone, serve(split, lanes=sizes.get("pipeline", 1))) <= 1
    found = family(name)
    parsed = found.parse(CONFIG | {"architectures": [name], "sliding_window": 7})
    model = found.build(parsed, jnp.dtype("float32"), layers="stacked")
    prompt = list(requests()[0].prompt_token_ids)
    logits = dense_logits(model, np.asarray(prompt + alone[0].tokens))[len(prompt) - 1 : -1]
    chosen = logits[np.arange(len(alone[0].tokens)), alone[0].tokens]
    assert (logits.max(axis=-1) - chosen < ROUNDING).all()

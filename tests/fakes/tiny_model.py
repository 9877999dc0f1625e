"""A real Llama of a few thousand parameters, with an executor around it: small enough to compile in a test."""

import functools

import jax.numpy as jnp

from models import llama
from models.interface import Model, ModelShape
from pallas_kernels.dispatch import attention_body
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits

VOCAB_SIZE = 131
MAX_MODEL_LEN = 256
PAGE_SIZE = 8
NUM_PAGES = 512
MAX_NUM_SEQS = 32
BUCKETS = (1, 8, 32, 128)
DECODE_ROUNDS = 4
CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
LIMITS = ExecutorLimits(
    max_num_seqs=MAX_NUM_SEQS,
    max_model_len=MAX_MODEL_LEN,
    page_size=PAGE_SIZE,
    num_pages=NUM_PAGES,
    token_buckets=BUCKETS,
    decode_rounds=DECODE_ROUNDS,
)


def tiny_llama() -> tuple[Model, ModelShape]:
    config = llama.parse(CONFIG)
    return llama.build(config, jnp.dtype("float32"), layers="list"), llama.shape(config)


@functools.cache
def tiny_executor() -> Executor:
    """Shared by a whole test run: what an executor's pages held before must never matter."""
    model, shape = tiny_llama()
    return Executor(model, shape, LIMITS, attention_body("reference"), jnp.dtype("float32"))

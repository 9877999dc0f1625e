"""A real Llama of a few thousand parameters, with an executor around it: small enough to compile in a test."""

import functools

import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import llama
from models.interface import Model, ModelShape
from models.rope import make_rope
from pallas_kernels.dispatch import paged_attention
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits

VOCAB_SIZE = 131
MAX_MODEL_LEN = 256
PAGE_SIZE = 8
NUM_PAGES = 512
MAX_NUM_SEQS = 32
BUCKETS = (1, 8, 32, 128)


def tiny_llama(seed: int = 0) -> tuple[Model, ModelShape]:
    """Weights are drawn in numpy: drawing them under jit would take longer than the test."""
    config = llama.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        d=32,
        f=48,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        eps=1e-5,
        max_position=MAX_MODEL_LEN,
        rope=make_rope(8, 10000.0, MAX_MODEL_LEN, None),
        tied=False,
    )
    model = nnx.eval_shape(lambda: llama.build(config, jnp.float32))
    draw = np.random.default_rng(seed)
    graph, state = nnx.split(model)

    def fill(leaf: object) -> object:
        shape = leaf.shape  # type: ignore[attr-defined]
        return jnp.asarray(draw.standard_normal(shape, dtype=np.float32) * (1.0 if len(shape) < 3 else 0.3))

    import jax

    return nnx.merge(graph, jax.tree.map(fill, state)), llama.shape(config)


@functools.cache
def tiny_executor() -> Executor:
    """Shared by a whole test run: what an executor's pages held before must never matter."""
    model, shape = tiny_llama()
    limits = ExecutorLimits(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        token_buckets=BUCKETS,
    )
    return Executor(model, shape, limits, paged_attention("reference"), jnp.dtype("float32"))

"""The tiny Llama with slots for adapters, and the same model with one of them added to its weights."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import llama
from models.adapted_array import AdapterProduct
from models.adapters import lay_out
from pallas_kernels.dispatch import attention_body
from serving.engine.adapter_stacks import AdapterStacks
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from sharding.mesh import one_device
from sharding.params import Placement
from tests.fakes.tiny_adapters import RANK
from tests.fakes.tiny_model import CONFIG, DECODE_ROUNDS, MAX_MODEL_LEN, PAGE_SIZE, tiny_llama

SLOTS = 3
NUM_PAGES = 256
BUCKETS = (8, 64)


def tiny_stacks(slots: int = SLOTS) -> AdapterStacks:
    config = llama.parse(CONFIG)
    planned = llama.build(config, jnp.dtype("float32"), seed=None, layers="list")
    layout = lay_out(planned, llama.tensors(config), slots=slots, max_rank=RANK, dtype=jnp.float32)
    return AdapterStacks(layout, AdapterProduct(one_device()), Placement(one_device(), kv_copies=1))


@functools.cache
def adapted_executor() -> Executor:
    """Shared by a test run: what its slots and pages held before must never matter."""
    model, shape = tiny_llama()
    limits = ExecutorLimits(
        max_num_seqs=8,
        max_model_len=MAX_MODEL_LEN,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        token_buckets=BUCKETS,
        decode_rounds=DECODE_ROUNDS,
    )
    body = attention_body("reference")
    return Executor(model, shape, limits, body, jnp.dtype("float32"), adapters=tiny_stacks())


def merged_weights(folder: Path) -> tuple[jax.Array, ...]:
    """The leaves of the tiny Llama with an adapter added to them."""
    model, _ = tiny_llama()
    layout = tiny_stacks(1).layout
    stacks = tiny_stacks(1)
    arrays = stacks.read(folder).arrays
    modules = dict(nnx.iter_modules(model))
    for leaf, down, up in zip(layout.leaves, arrays[::2], arrays[1::2], strict=True):
        module, name = modules[leaf.path[:-1]], leaf.path[-1]
        weight = np.asarray(getattr(module, name)[...])
        update = np.tensordot(down, up, axes=1)
        setattr(module, name, nnx.Param(jnp.asarray(weight + update.reshape(weight.shape))))
    return tuple(jax.tree.leaves(nnx.split(model)[1]))

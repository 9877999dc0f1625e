"""The tiny Llama with slots for adapters, and the same model with one of them added to its weights."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import llama
from models.adapted_array import AdapterProduct
from models.adapters import lay_out
from models.interface import ModelShape
from pallas_kernels.dispatch import attention_body
from serving.engine.adapter_stacks import AdapterStacks
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from sharding.mesh import one_device
from sharding.params import Placement
from tests.fakes.tiny_adapters import RANK
from tests.fakes.tiny_model import CONFIG, MAX_MODEL_LEN, PAGE_SIZE

SLOTS = 3
NUM_PAGES = 256
MAX_NUM_SEQS = 16
BUCKETS = (16,)  # one, as each costs seconds to compile


def tiny_stacks(slots: int = SLOTS) -> AdapterStacks:
    config = llama.parse(CONFIG)
    planned = llama.build(config, jnp.dtype("float32"), seed=None)
    layout = lay_out(planned, llama.tensors(config), slots=slots, max_rank=RANK, dtype=jnp.float32)
    return AdapterStacks(layout, AdapterProduct(one_device()), Placement(one_device(), kv_copies=1))


def _stacked_llama() -> tuple[Any, ModelShape]:
    config = llama.parse(CONFIG)
    return llama.build(config, jnp.dtype("float32")), llama.shape(config)


@functools.cache
def adapted_executor() -> Executor:
    """Shared by a test run: what its slots and pages held before must never matter."""
    model, shape = _stacked_llama()
    limits = ExecutorLimits(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        token_buckets=BUCKETS,
    )
    body = attention_body("reference")
    return Executor(model, shape, limits, body, jnp.dtype("float32"), adapters=tiny_stacks())


def merged_weights(folder: Path | None) -> tuple[jax.Array, ...]:
    """The leaves of the tiny Llama with an adapter added to them, or without."""
    model, _ = _stacked_llama()
    stacks = tiny_stacks(1)
    arrays = stacks.layout.on_host({}) if folder is None else stacks.read(folder).arrays
    modules = dict(nnx.iter_modules(model))
    for leaf, down, up in zip(stacks.layout.leaves, arrays[::2], arrays[1::2], strict=True):
        module, name = modules[leaf.path[:-1]], leaf.path[-1]
        weight = np.asarray(getattr(module, name)[...])
        update = [np.tensordot(a, b, axes=1) for a, b in zip(down, up, strict=True)]
        setattr(module, name, nnx.Param(jnp.asarray(weight + np.stack(update).reshape(weight.shape))))
    return tuple(jax.tree.leaves(nnx.split(model)[1]))

"""The programs of steps in which a sequence has an adapter. A step without any runs the plain ones, and pays nothing.

Each is a plain program's body over a model whose weights have the adapters' beside them, so that what a step does is
written once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.adapters import adapter_rows
from serving.engine import steps
from serving.engine.adapter_stacks import AdapterStacks
from serving.engine.batch import SEQUENCE_FIELDS, BatchLayout
from serving.engine.hidden_pages import AnyPool
from serving.engine.programs import (
    Progress,
    compile_lowered,
    layouts_of_decode,
    lower_decode_rounds,
    lower_forward,
)
from serving.engine.sampler_rows import SamplerRows

Weights = tuple[tuple[Array, ...], tuple[Array, ...]]  # the model's leaves, and the adapters' stacks


@dataclass(frozen=True, slots=True)
class AdaptedPrograms:
    """By the bucket that each is for. They take `Weights` where the plain ones take the model's leaves."""

    forward: Mapping[BatchLayout, jax.stages.Compiled]
    decode_rounds: Mapping[BatchLayout, jax.stages.Compiled]

    @property
    def count(self) -> int:
        return len(self.forward) + len(self.decode_rounds)


def compile_adapted(
    stacks: AdapterStacks,
    program: steps.ModelProgram,
    layouts: list[BatchLayout],
    weights: tuple[Array, ...],
    pool: AnyPool,
    rows: SamplerRows,
    rounds: int,
    progress: Progress | None = None,
) -> AdaptedPrograms:
    both = (weights, stacks.arrays)
    lowered: dict[tuple[str, object], jax.stages.Lowered] = {}
    for layout in layouts:
        forward = adapted(steps.forward, stacks, program, layout)
        lowered["forward", layout] = lower_forward(forward, program, layout, both, pool, rows)
        if rounds > 1 and layout in layouts_of_decode(layouts):
            decode = adapted(steps.decode_rounds, stacks, program, layout, rounds)
            lowered["decode_rounds", layout] = lower_decode_rounds(decode, program, layout, both, pool, rows)
    compiled = compile_lowered(lowered.items(), progress)

    def of(name: str) -> dict:
        return {key: program for (kind, key), program in compiled.items() if kind == name}

    return AdaptedPrograms(of("forward"), of("decode_rounds"))


def adapted(
    body: Callable[..., Any], stacks: AdapterStacks, program: steps.ModelProgram, layout: BatchLayout, *settings: Any
) -> Callable[..., Any]:
    """body(program, layout, *settings, weights, pool, source, vector, ...) over `Weights`."""
    of_model, product = stacks.layout, stacks.product

    def run(weights: Weights, pool: AnyPool, source: Any, vector: Array, *others: Any) -> Any:
        leaves, arrays = weights
        rows = adapter_rows(slots_of_tokens(vector, layout), of_model.slots)
        attach = partial(of_model.attach, stacks=arrays, rows=rows, product=product)
        return body(replace(program, attach=attach), layout, *settings, leaves, pool, source, vector, *others)

    return run


def slots_of_tokens(vector: Array, layout: BatchLayout) -> Array:
    """[shards, T] the slot of each token's adapter; -1 where it has none."""
    fields = steps.unpack(vector, layout)
    adapters = fields["sequences"][:, SEQUENCE_FIELDS.index("adapter")]  # [shards, S], from 1
    owners = fields["sequence_ids"]
    of_owner = jnp.take_along_axis(adapters, jnp.minimum(owners, layout.sequences - 1), axis=1)
    return jnp.where(owners < layout.sequences, of_owner - 1, -1)

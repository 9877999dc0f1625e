"""A draft model or an EAGLE-3 head on the device: its weights, its pages, its compiled programs (see `drafting.py`).

Its pages are as many as the model's and have the same numbers: position p of a sequence lies in page p // page_size of
the same page table in both pools, so that nobody has to keep accounts of the draft's. Where a page came from the prefix
cache, or a stream from another engine, the draft model has read nothing yet; what it has read of a sequence is counted
in `Guessing`. The hidden states that a head reads lie in the model's own pages (see `hidden_pages.py`).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from models.interface import Model, ModelShape
from pallas_kernels.dispatch import AttentionBody
from serving.engine import drafting
from serving.engine.batch import BatchLayout, BatchPacker
from serving.engine.device_memory import Resident
from serving.engine.hidden_pages import AnyPool, WatchedPool, states_form
from serving.engine.limits import ExecutorLimits
from serving.engine.plan import StepPlan
from serving.engine.programs import Progress, compile_lowered
from serving.engine.stage import Stage, stages_of
from sharding.mesh import everywhere


class Drafter:
    """Guesses for the rows of one executor, in the order of its plans."""

    def __init__(
        self,
        model: Model,
        shape: ModelShape,
        limits: ExecutorLimits,
        attention: AttentionBody,
        cache_dtype: Any,
        mesh: Mesh,
        progress: Progress | None = None,
        guesser: drafting.Guesser | None = None,
    ) -> None:
        """`limits` are those of the executor that it drafts for; the weights lie on the mesh already. `guesser` None:
        it is a small model."""
        self._guesser = guesser or drafting.DraftGuesser()
        watched, limits = limits.watched, dataclasses.replace(limits, watched=None)
        self._given = () if watched is None else (states_form(watched, limits, mesh),)
        (stage,) = stages_of(model, shape, limits, attention, cache_dtype, mesh)
        self.stage: Stage = stage
        self.resident = Resident(stage.weights, stage.empty_pool())
        self._layouts = [limits.layout_for(bucket) for bucket in (*limits.guessed_buckets, limits.token_buckets[-1])]
        self._programs: Mapping[BatchLayout, jax.stages.Compiled] = self._compiled(limits, progress)

    @property
    def count(self) -> int:
        """Programs compiled."""
        return len(self._programs)

    def guesses(self, plan: StepPlan, packer: BatchPacker, pool: AnyPool) -> Array:
        """Starts reading and guessing for the plan, which `packer` has packed; [K, R] on the device. `pool` is the
        model's."""
        ranges = sorted(plan.drafting, key=lambda r: r.length != 1)  # attention takes those of one token together
        reading = dataclasses.replace(plan, admissions=(), ranges=tuple(ranges), drafting=())
        batch = packer.pack(reading, self._layout_for)
        given = (pool.states,) if isinstance(pool, WatchedPool) else ()
        self.resident.pool, made = self._programs[batch.layout](
            self.resident.weights, self.resident.pool, batch.vector, *given
        )
        return made

    def _layout_for(self, num_tokens: int) -> BatchLayout:
        return next(layout for layout in self._layouts if layout.tokens >= num_tokens)

    def _compiled(self, limits: ExecutorLimits, progress: Progress | None) -> Mapping[BatchLayout, jax.stages.Compiled]:
        lowered: dict[tuple[str, object], jax.stages.Lowered] = {
            ("draft", layout): lowered_draft(self.stage, self._guesser, layout, limits, self._given)
            for layout in dict.fromkeys(self._layouts)
        }
        compiled = compile_lowered(lowered.items(), progress)
        return {layout: compiled["draft", layout] for layout in dict.fromkeys(self._layouts)}


def lowered_draft(
    stage: Stage, guesser: drafting.Guesser, layout: BatchLayout, limits: ExecutorLimits, given: tuple[Any, ...]
) -> jax.stages.Lowered:
    """Of shapes alone. `given` are those of what `guesser` reads of the model that it guesses for."""
    whole = everywhere(stage.mesh)
    draft = jax.jit(
        functools.partial(drafting.draft, guesser, stage.program, layout, limits.guesses, limits.max_num_seqs),
        donate_argnums=1,
        out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, stage.pool), whole),
    )
    vector = jax.ShapeDtypeStruct((layout.size,), jnp.int32, sharding=whole)
    return draft.lower(stage.weights, stage.pool, vector, *given)

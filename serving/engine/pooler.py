"""Hidden states of texts to vectors, on the device: a small program after the forward one, in steps that read texts.

A step reads a part of each of its texts. Which tokens count is said by the host, as a run of the flat batch for each
text, so that the last token and the mean over all are one program. What the parts of a text add up to waits in the row
of its sequence, in float32, until the text ends: a text gives the same vector in however many parts it was read, up to
the order of a sum. One that begins anew, after it was preempted, begins its sum anew.

Letters: S texts of a step, T tokens of it, R rows, D model width.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from serving.engine.batch import BatchLayout, PackedBatch
from serving.engine.plan import StepPlan
from serving.engine.programs import Programs, compile_lowered
from serving.engine.request import Pooling
from sharding.host_data import put_tree
from sharding.mesh import everywhere

Progress = Callable[[int, int], None]  # programs compiled, programs in all
# Of each text of a step: its row, where the run that counts begins and ends in the flat batch, how many tokens have
# counted with it, and whether the sum begins here.
FIELDS = ("row", "begin", "end", "count", "fresh")
SHORTEST = 1e-12  # a vector shorter than that is not made longer


def pool_texts(unit: bool, sums: Array, hidden: Array, texts: Array) -> tuple[Array, Array]:
    """(sums [R, D], vectors [S, D] float32) of sums, hidden [T, D] and texts [FIELDS, S] int32.

    Texts of a row outside of R are none. `unit`: vectors have length 1.
    """
    row, begin, end, count, fresh = texts
    place = jnp.arange(hidden.shape[0])
    counts = (place >= begin[:, None]) & (place < end[:, None])  # [S, T]
    # Zeros for all others, not a product with 0: what stands at padding may be no number.
    states = jnp.where(jnp.any(counts, axis=0)[:, None], hidden.astype(jnp.float32), 0.0)
    read = jnp.matmul(counts.astype(jnp.float32), states, precision=lax.Precision.HIGHEST)
    known = jnp.where(fresh[:, None] != 0, 0.0, sums.at[row].get(mode="fill", fill_value=0.0))
    total = known + read
    vectors = total / jnp.maximum(count, 1)[:, None]
    if unit:
        vectors = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), SHORTEST)
    return sums.at[row].set(total, mode="drop"), vectors


class Pooler:
    """One executor's sums, and the program for each of its layouts. Not with data shards or a pipeline."""

    def __init__(
        self, programs: Programs, num_rows: int, mesh: Mesh, *, unit: bool, progress: Progress | None = None
    ) -> None:
        """Compiles the programs, for what those of `programs` give."""
        whole = everywhere(mesh)
        self._num_rows = num_rows
        hidden = {layout: forward.out_info[-1] for layout, forward in programs.forward.items()}
        width = next(iter(hidden.values())).shape[1]
        self._sums = put_tree(np.zeros((num_rows, width), np.float32), whole)
        jit = partial(jax.jit, donate_argnums=0, out_shardings=whole)
        lowered: dict[tuple[str, object], jax.stages.Lowered] = {
            ("pool", layout): jit(partial(pool_texts, unit)).lower(
                self._sums,
                jax.ShapeDtypeStruct(states.shape, states.dtype, sharding=states.sharding),
                jax.ShapeDtypeStruct((len(FIELDS), layout.sequences), jnp.int32, sharding=whole),
            )
            for layout, states in hidden.items()
        }
        compiled = compile_lowered(lowered.items(), progress)
        self._programs: Mapping[BatchLayout, jax.stages.Compiled] = {
            layout: compiled["pool", layout] for layout in hidden
        }

    @property
    def count(self) -> int:
        return len(self._programs)

    def pool(self, plan: StepPlan, batch: PackedBatch, hidden: Array) -> Array | None:
        """[S, D] the vectors of texts that end in this step; None where none does. hidden is the step's, [T, D]."""
        texts = texts_of(plan, batch, self._num_rows)
        self._sums, vectors = self._programs[batch.layout](self._sums, hidden, texts)
        if not any(r.ends_text for r in plan.ranges):
            return None
        vectors.copy_to_host_async()
        return vectors


def texts_of(plan: StepPlan, batch: PackedBatch, num_rows: int) -> np.ndarray:
    """[FIELDS, S] int32 of a step. A place without a text has a row that is not there, and counts nothing."""
    texts = np.zeros((len(FIELDS), batch.layout.sequences), np.int32)
    texts[0] = num_rows
    for r, slot, begin in zip(plan.ranges, batch.slots.tolist(), batch.begins.tolist(), strict=True):
        end = begin + r.length
        if r.pools is Pooling.LAST:
            texts[:, slot] = (r.row, end - 1, end, 1, 1)
        elif r.pools is Pooling.MEAN:
            texts[:, slot] = (r.row, begin, end, r.start + r.length, r.start == 0)
    return texts

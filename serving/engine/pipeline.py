"""The stages of a pipeline before the last one, each on its own sub-mesh with the pages of its layers.

A step passes through them one after another; what a stage hands on is moved to the next one's devices. Nothing here
waits: each sub-mesh works through its own queue, so a stage runs one lane of rows while the next stage runs another
(see `lanes.py`).
"""

from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from serving.engine.batch import BatchLayout
from serving.engine.device_memory import Resident
from serving.engine.programs import Progress, compile_lowered, lower_programs, lower_stage
from serving.engine.sampler_rows import SamplerRows
from serving.engine.stage import Stage
from sharding.mesh import everywhere
from sharding.rules import spec_of


def lower_earlier(
    stages: list[Stage], last: Stage, layouts: list[BatchLayout], rows: SamplerRows
) -> tuple[list[dict[BatchLayout, jax.stages.Lowered]], dict[BatchLayout, jax.ShapeDtypeStruct]]:
    """The program of each stage before the last one for each layout, and what the last one takes from them."""
    lowered: list[dict[BatchLayout, jax.stages.Lowered]] = []
    whole = everywhere(stages[0].mesh)
    tokens = jax.ShapeDtypeStruct(rows.last_token.shape, rows.last_token.dtype, sharding=whole)
    source = dict.fromkeys(layouts, tokens)
    for stage, following in zip(stages, [*stages[1:], last], strict=True):
        programs = {
            layout: lower_stage(stage.program, layout, stage.weights, stage.pool, source[layout]) for layout in layouts
        }
        lowered.append(programs)
        there = _hidden_on(following)
        source = {
            layout: jax.ShapeDtypeStruct(program.out_info[1].shape, program.out_info[1].dtype, sharding=there)
            for layout, program in programs.items()
        }
    return lowered, source


def lower_steps(
    earlier: list[Stage], last: Stage, layout: BatchLayout, rows: SamplerRows
) -> Iterator[jax.stages.Lowered]:
    """The forward programs that a step of this layout runs, one a stage."""
    entering = None
    if earlier:
        lowered, entering = lower_earlier(earlier, last, [layout], rows)
        yield from (of_stage[layout] for of_stage in lowered)
    programs = lower_programs(last.program, [layout], last.weights, last.pool, rows, entering)
    yield next(low for key, low in programs if key == ("forward", layout))


class EarlierStages:
    """Runs all stages but the last. What they hold on the devices are its `residents`."""

    def __init__(
        self,
        stages: list[Stage],
        last: Stage,
        lowered: list[dict[BatchLayout, jax.stages.Lowered]],
        progress: Progress | None,
    ) -> None:
        together: dict[tuple[str, object], jax.stages.Lowered] = {
            (str(i), layout): low for i, of_stage in enumerate(lowered) for layout, low in of_stage.items()
        }
        compiled = compile_lowered(together.items(), progress)
        self.residents = [Resident(stage.weights, stage.empty_pool()) for stage in stages]
        self._programs: list[Mapping[BatchLayout, jax.stages.Compiled]] = [
            {layout: compiled[str(i), layout] for layout in of_stage} for i, of_stage in enumerate(lowered)
        ]
        self._source = everywhere(stages[0].mesh)
        self._handed_to = [_hidden_on(following) for following in (*stages[1:], last)]
        self.count = len(compiled)

    def run(self, layout: BatchLayout, last_token: Array, vector: np.ndarray) -> Array:
        """Hidden states [T, D] on the last stage's devices."""
        passed = jax.device_put(last_token, self._source)
        for resident, programs, there in zip(self.residents, self._programs, self._handed_to, strict=True):
            resident.pool, passed = programs[layout](resident.weights, resident.pool, passed, vector)
            passed = jax.device_put(passed, there)
        return passed


def _hidden_on(stage: Stage) -> NamedSharding:
    return NamedSharding(stage.mesh, spec_of(("tokens", None)))

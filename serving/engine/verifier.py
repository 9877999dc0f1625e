"""Steps with guesses on the device: their compiled programs (see `verify.py`), and what comes back of one."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from serving.engine import steps, verify
from serving.engine.adapted_programs import adapted
from serving.engine.adapter_stacks import AdapterStacks
from serving.engine.batch import BatchLayout, PackedBatch
from serving.engine.hidden_pages import AnyPool
from serving.engine.plan import Range, RangeResult, StepPlan, StepResult
from serving.engine.programs import Progress, compile_lowered
from serving.engine.sampler_rows import ALL_BITS, NO_ID, SamplerRows, words_of
from serving.engine.scores import ScoredTokens
from sharding.host_data import put_tree
from sharding.mesh import everywhere

Drawn = tuple[Array, tuple[Array, ...]]  # tokens [K + 1, S], and their scores
DrawGuessed = Callable[[np.ndarray | None], Drawn]


@dataclass(frozen=True, slots=True)
class Verifier:
    """The programs by layout; each has at most `most` guesses a sequence."""

    most: int
    vocab_size: int
    forward: Mapping[BatchLayout, jax.stages.Compiled]
    adapted_forward: Mapping[BatchLayout, jax.stages.Compiled]  # of steps in which a sequence has an adapter
    draw: Mapping[BatchLayout, jax.stages.Compiled]
    no_masks: Mapping[BatchLayout, Array]  # on the device: all is allowed

    @property
    def count(self) -> int:
        return len(self.forward) + len(self.adapted_forward) + len(self.draw)

    def masks_of(self, plan: StepPlan, batch: PackedBatch, masks: np.ndarray) -> np.ndarray:
        """[K + 1, S, W] of the rows that the constrained ranges have in masks [n, W]: one for each of their draws."""
        every = np.full((self.most + 1, batch.layout.sequences, words_of(self.vocab_size)), ALL_BITS, np.uint32)
        begin = 0
        for i in plan.constrained:
            draws = plan.ranges[i].guesses + 1
            every[:draws, batch.slots[i]] = masks[begin : begin + draws]
            begin += draws
        return every


def compile_verifier(
    program: steps.ModelProgram,
    layouts: list[BatchLayout],
    weights: tuple[Array, ...],
    pool: AnyPool,
    rows: SamplerRows,
    most: int,
    *,
    adapters: AdapterStacks | None = None,
    progress: Progress | None = None,
) -> Verifier:
    """For these buckets, and sequences with `adapters` too."""
    whole = everywhere(program.mesh)
    lowered: dict[tuple[str, object], jax.stages.Lowered] = {}
    no_masks: dict[BatchLayout, Array] = {}
    for layout in layouts:
        pool_lies = jax.tree.map(lambda leaf: leaf.sharding, pool)
        jit = functools.partial(jax.jit, donate_argnums=1, out_shardings=(pool_lies, whole, whole, whole))
        vector = jax.ShapeDtypeStruct((layout.size,), jnp.int32, sharding=whole)
        made = jax.ShapeDtypeStruct((most, rows.num_rows), jnp.int32, sharding=whole)
        given = (pool, rows.last_token, vector, made)
        lowered["forward", layout] = jit(functools.partial(verify.forward, program, layout, most)).lower(
            weights, *given
        )
        if adapters is not None:
            forward = jit(adapted(verify.forward, adapters, program, layout, most))
            lowered["adapted_forward", layout] = forward.lower((weights, adapters.arrays), *given)
        drawn_from = [
            jax.ShapeDtypeStruct(out.shape, out.dtype, sharding=whole)
            for out in lowered["forward", layout].out_info[1:]
        ]
        draw = jax.jit(functools.partial(verify.draw, layout), donate_argnums=0, out_shardings=whole)
        masks = (most + 1, layout.sequences, words_of(program.vocab_size))
        no_masks[layout] = put_tree(np.full(masks, ALL_BITS, np.uint32), whole)
        lowered["draw", layout] = draw.lower(rows, *drawn_from, no_masks[layout])
    compiled = compile_lowered(lowered.items(), progress)

    def of(name: str) -> dict:
        return {key: program for (kind, key), program in compiled.items() if kind == name}

    return Verifier(most, program.vocab_size, of("forward"), of("adapted_forward"), of("draw"), no_masks)


def guesses_of(plan: StepPlan, most: int, num_rows: int) -> np.ndarray:
    """[K, R] of a plan that names them."""
    guesses = np.full((most, num_rows), NO_ID, np.int32)
    for r in plan.ranges:
        if r.guesses:
            guesses[: r.guesses, r.row] = r.token_ids[-r.guesses :]
    return guesses


@dataclass(slots=True)
class PendingGuesses:
    """A step with guesses on the device."""

    plan: StepPlan
    batch: PackedBatch
    guesses: Array  # [K, S]
    draw_now: DrawGuessed | None  # where ranges are constrained: until `draw`
    drawn: Drawn | None

    def guessed(self) -> list[list[int]]:
        """The guesses of each range. Waits for those that the device makes."""
        guesses = np.asarray(self.guesses).T[self.batch.slots].tolist()
        return [ids[: r.guesses] for ids, r in zip(guesses, self.plan.ranges, strict=True)]

    def draw(self, masks: np.ndarray) -> None:
        """Starts the draws of a step with constrained ranges; masks [n, W] uint32 has a row for each of their draws, in
        order."""
        assert self.draw_now is not None
        self.drawn = self.draw_now(masks)
        self.draw_now = None

    def collect(self) -> StepResult:
        """Waits for the step and returns what it drew: of each sequence up to its first wrong guess."""
        assert self.drawn is not None
        tokens, scores = np.asarray(self.drawn[0]), None
        if self.batch.logprobs:
            flat = [np.asarray(leaf).reshape(-1, *leaf.shape[2:]) for leaf in self.drawn[1]]
            scores = ScoredTokens(tokens.reshape(-1), *flat)
        slots = self.batch.slots.tolist()
        return StepResult(
            ranges=tuple(
                _result(r, guesses, slot, tokens, scores)
                for r, guesses, slot in zip(self.plan.ranges, self.guessed(), slots, strict=True)
            )
        )


def agreed(guesses: list[int], drawn: list[int]) -> list[int]:
    """Of the tokens drawn after each guess and before the first one, those up to the first that no guess foresaw."""
    for count, (guess, token) in enumerate(zip(guesses, drawn, strict=False), 1):
        if token < 0 or guess != token:
            return drawn[:count]
    return drawn[: len(guesses) + 1]


def _result(r: Range, guesses: list[int], slot: int, tokens: np.ndarray, scores: ScoredTokens | None) -> RangeResult:
    if not r.samples:
        return RangeResult(token_id=None)
    kept = agreed(guesses, tokens[:, slot].tolist())
    top = r.sampling.logprobs
    scored = []
    if scores is not None and top is not None:
        scored = [scores.at(number * tokens.shape[1] + slot, top) for number in range(len(kept))]
    return RangeResult(
        token_id=kept[0],
        following=tuple(kept[1:]),
        logprobs=scored[0] if scored else None,
        following_logprobs=tuple(scored[1:]),
    )

"""The device side of the engine: weights, pages, sampler rows and compiled programs behind `dispatch` and `collect`.

Every program is compiled before the executor is ready, and called as a compiled object: an unforeseen shape is
an error, never a compilation while serving. Programs do not wait for each other on the host: `dispatch` returns while
the device works, and the tokens it draws feed the next dispatch on the device.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from models.interface import Model, ModelShape
from models.sequence_parallel import split_sequences
from models.split_experts import Wish, log_ways, split_experts
from models.stages import Stages
from pallas_kernels.dispatch import AttentionBody
from serving.engine.adapted_programs import AdaptedPrograms, compile_adapted
from serving.engine.adapter_stacks import AdapterStacks
from serving.engine.batch import BatchPacker, PackedBatch
from serving.engine.device_memory import DeviceMemory, Resident
from serving.engine.drafter import Drafter
from serving.engine.hidden_pages import AnyPool
from serving.engine.limits import ExecutorLimits
from serving.engine.pipeline import EarlierStages, lower_earlier
from serving.engine.plan import Admission, Range, RangeResult, StepPlan, StepResult
from serving.engine.pooler import Pooler
from serving.engine.programs import Programs, Progress, compile_programs
from serving.engine.request import TokenLogprobs
from serving.engine.sampler_rows import ALL_BITS, admission_arrays, init_rows, words_of
from serving.engine.scores import ScoredTokens
from serving.engine.stage import stages_of
from serving.engine.tiers.exchange import PageExchange
from serving.engine.verifier import Drawn as DrawnGuesses
from serving.engine.verifier import PendingGuesses, Verifier, compile_verifier, guesses_of
from sharding.host_data import put_tree
from sharding.mesh import everywhere, one_device

Scores = tuple[Array, Array, Array, Array]  # see steps.score
Drawn = tuple[Array, Scores | None]  # tokens [S], or [rounds, S], and their scores where asked for
DrawMasked = Callable[[np.ndarray], Drawn]


class Executor:
    """Runs plans, in the order they are dispatched. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        model: Model | Stages,
        shape: ModelShape,
        limits: ExecutorLimits,
        attention: AttentionBody,
        cache_dtype: Any,
        progress: Progress | None = None,
        mesh: Mesh | None = None,
        expert_exchange: Wish = "auto",
        adapters: AdapterStacks | None = None,
        drafter: Drafter | None = None,
        unit_vectors: bool | None = None,
    ) -> None:
        """The weights lie on the mesh already (see `sharding.params` and `models.stages`); without one all is on the
        default device. With a pipeline this is one of its lanes (see `lanes.py`); `beside` makes the others.
        `adapters` None: no sequence may have one. `drafter` None: guesses come with the plan, where there are any.
        `unit_vectors`: texts become vectors, of length 1 or as they are; None: there are no texts.
        """
        mesh = mesh or one_device()
        self.limits = limits
        self.vocab_size = shape.vocab_size
        split_experts(model, mesh, expert_exchange)
        split_sequences(model, mesh, limits.sequence_parallel_tokens)
        if shape.experts and mesh.devices.size > 1:
            log_ways(mesh, expert_exchange, shape.experts, shape.experts_per_token, limits.token_buckets)
        *earlier, last = stages_of(model, shape, limits, attention, cache_dtype, mesh)
        self._mesh = last.mesh
        self._begin_rows()
        layouts = [limits.layout_for(bucket) for bucket in limits.token_buckets]
        self._earlier: EarlierStages | None = None
        entering = None
        if earlier:
            lowered, entering = lower_earlier(earlier, last, layouts, self._rows)
            self._earlier = EarlierStages(earlier, last, lowered, progress)
        self._resident = Resident(last.weights, last.empty_pool())
        others = () if self._earlier is None else self._earlier.residents
        self.memory = DeviceMemory((*others, self._resident), [*earlier, last])
        self.programs = compile_programs(
            last.program, layouts, last.weights, self.pool, self._rows, progress, entering, limits.decode_rounds
        )

        self._drafter = drafter
        self._verifier: Verifier | None = None
        if limits.guessed_buckets:
            guessed = [limits.layout_for(bucket) for bucket in limits.guessed_buckets]
            self._verifier = compile_verifier(
                last.program,
                guessed,
                last.weights,
                self.pool,
                self._rows,
                limits.guesses,
                adapters=adapters,
                progress=progress,
            )

        self.adapters = adapters
        self._adapted: AdaptedPrograms | None = None
        if adapters is not None:
            shared = (layouts, last.weights, self.pool, self._rows, limits.decode_rounds)
            self._adapted = compile_adapted(adapters, last.program, *shared, progress)

        self.pooler: Pooler | None = None
        if unit_vectors is not None:
            num_rows = limits.shards * limits.max_num_seqs
            self.pooler = Pooler(self.programs, num_rows, last.mesh, unit=unit_vectors, progress=progress)

    def page_exchange(self) -> PageExchange:
        """What copies pages out of the pool and into it; compiles its programs."""
        return PageExchange(self._resident, self._mesh)

    def beside(self) -> "Executor":
        """One for other rows, over the same weights, pages and programs."""
        other = copy.copy(self)
        other._begin_rows()
        return other

    def _begin_rows(self) -> None:
        limits = self.limits
        num_rows = limits.shards * limits.max_num_seqs
        self._rows = put_tree(init_rows(num_rows, self.vocab_size), everywhere(self._mesh))
        self._packer = BatchPacker(num_rows, limits.table_width, limits.layout_for, limits.shards)
        self._draw_later: DrawMasked | None = None  # of the step that waits for its masks
        self._prompts: dict[int, tuple[int, ...]] = {}  # by row, of the sequences whose prompts are scored

    @property
    def pool(self) -> AnyPool:
        return self._resident.pool

    @property
    def _weights(self) -> tuple[Array, ...]:
        return self._resident.weights

    @property
    def programs_compiled(self) -> int:
        others = (self._earlier, self._verifier, self._drafter, self._adapted, self.pooler)
        return self.programs.count + sum(part.count for part in others if part is not None)

    def dispatch(self, plan: StepPlan) -> "PendingStep | PendingGuesses":
        """Starts a step and returns at once. `collect` on what it returns waits for the tokens. Where ranges are
        constrained, nothing is drawn before `draw` has their masks, which must be before the next dispatch.
        """
        if self._draw_later is not None:
            raise RuntimeError("the step before this one waits for its masks: its tokens feed this one")
        for admission in plan.admissions:
            self._admit(admission)
        batch = self._packer.pack(plan)
        layout = batch.layout
        made = self._draft(plan)
        if plan.guesses:
            return self._dispatch_guesses(plan, batch, made)
        if plan.rounds > 1:
            return self._dispatch_rounds(plan, batch)
        last = self._rows.last_token
        handed = () if self._earlier is None else (self._earlier.run(layout, last, batch.vector),)
        programs, weights = self._programs_of(batch)
        self._resident.pool, last_token, tokens, logits, sequences, hidden = programs.forward[layout](
            weights, self.pool, last, batch.vector, *handed
        )
        self._rows = replace(self._rows, last_token=last_token)
        prompt_ids, prompt_scores = self._score_prompt(plan, batch, hidden) if batch.prompt_logprobs else (None, None)
        for array in jax.tree.leaves(prompt_scores):
            array.copy_to_host_async()
        vectors = self._pool_texts(plan, batch, hidden)
        if plan.constrained:
            self._draw_later = functools.partial(self._draw_masked, plan, batch, logits, sequences)
            return PendingStep(plan, batch, None, self._draw_later, prompt_ids, prompt_scores, vectors)
        if not batch.plain:
            self._rows, tokens = self.programs.sample[layout.all_sequences](self._rows, logits, sequences)
        return PendingStep(plan, batch, self._drawn(batch, logits, tokens), None, prompt_ids, prompt_scores, vectors)

    def _pool_texts(self, plan: StepPlan, batch: PackedBatch, hidden: Array) -> Array | None:
        """[S, D] the vectors of texts that end in this step; None where none does."""
        if not any(r.pools for r in plan.ranges):
            return None
        if self.pooler is None:
            raise ValueError("a step with texts, for which no programs were compiled")
        return self.pooler.pool(plan, batch, hidden)

    def _programs_of(self, batch: PackedBatch) -> tuple[Programs | AdaptedPrograms, Any]:
        """The programs for a step, and the weights that they take."""
        if not batch.adapted:
            return self.programs, self._weights
        if self.adapters is None or self._adapted is None:
            raise ValueError("a step with adapters, for which no programs were compiled")
        return self._adapted, (self._weights, self.adapters.arrays)

    def _dispatch_rounds(self, plan: StepPlan, batch: PackedBatch) -> "PendingStep":
        if plan.rounds != self.limits.decode_rounds:
            raise ValueError(f"a step of {plan.rounds} rounds; programs of {self.limits.decode_rounds} were compiled")
        programs, weights = self._programs_of(batch)
        self._resident.pool, self._rows, tokens = programs.decode_rounds[batch.layout](
            weights, self.pool, self._rows, batch.vector
        )
        tokens.copy_to_host_async()
        return PendingStep(plan, batch, (tokens, None), None, None, None)

    def _draft(self, plan: StepPlan) -> Array | None:
        """The draft model's guesses for this plan, where it is asked for any."""
        if not plan.drafting:
            return None
        if self._drafter is None:
            raise ValueError("a step for a draft model, which was not loaded")
        return self._drafter.guesses(plan, self._packer, self.pool)

    def _dispatch_guesses(self, plan: StepPlan, batch: PackedBatch, made: Array | None) -> PendingGuesses:
        verifier, layout = self._verifier, batch.layout
        if verifier is None:
            raise ValueError("a step with guesses, for which no programs were compiled")
        known = guesses_of(plan, verifier.most, self._rows.num_rows) if made is None else made
        forward = verifier.adapted_forward if batch.adapted else verifier.forward
        self._resident.pool, *drawn_from = forward[layout](
            self._programs_of(batch)[1], self.pool, self._rows.last_token, batch.vector, known
        )

        def draw(masks: np.ndarray | None) -> DrawnGuesses:
            every = verifier.no_masks[layout] if masks is None else verifier.masks_of(plan, batch, masks)
            self._rows, tokens, scores = verifier.draw[layout](self._rows, *drawn_from, every)
            for array in jax.tree.leaves((tokens, scores) if batch.logprobs else tokens):
                array.copy_to_host_async()
            return tokens, scores

        guesses = drawn_from[-1]
        guesses.copy_to_host_async()
        if plan.constrained:
            return PendingGuesses(plan, batch, guesses, draw, None)
        return PendingGuesses(plan, batch, guesses, None, draw(None))

    def _draw_masked(
        self, plan: StepPlan, batch: PackedBatch, logits: Array, sequences: Array, masks: np.ndarray
    ) -> Drawn:
        size = batch.layout.all_sequences
        every = np.full((size, words_of(self.vocab_size)), ALL_BITS, np.uint32)
        every[batch.slots[list(plan.constrained)]] = masks
        self._rows, tokens = self.programs.sample_masked[size](self._rows, logits, sequences, every)
        self._draw_later = None
        return self._drawn(batch, logits, tokens)

    def _drawn(self, batch: PackedBatch, logits: Array, tokens: Array) -> Drawn:
        scores = self.programs.score[batch.layout.all_sequences](logits, tokens) if batch.logprobs else None
        for array in jax.tree.leaves((tokens, scores)):
            array.copy_to_host_async()
        return tokens, scores

    def _admit(self, admission: Admission) -> None:
        sampling = admission.sampling
        if sampling.needs_row:
            setup = admission_arrays(admission, self.vocab_size)
            self._rows = self.programs.admit(self._rows, setup)
        if sampling.prompt_logprobs is not None:
            self._prompts[admission.row] = admission.prompt_token_ids
        else:
            self._prompts.pop(admission.row, None)

    def _score_prompt(self, plan: StepPlan, batch: PackedBatch, hidden: Array) -> tuple[np.ndarray, Scores]:
        """Scores at each position of the flat batch the prompt token that follows it, where there is one."""
        next_ids = np.zeros(batch.layout.all_tokens, np.int32)
        for r, begin in zip(plan.ranges, batch.begins.tolist(), strict=True):
            if r.prompt_logprobs_from is not None:
                following = self._prompts[r.row][r.start + 1 : r.start + 1 + r.length]
                next_ids[begin : begin + len(following)] = following
        return next_ids, self.programs.score_prompt[batch.layout.all_tokens](self._weights, hidden, next_ids)


@dataclass(slots=True)
class PendingStep:
    """A step on the device."""

    plan: StepPlan
    batch: PackedBatch
    drawn: Drawn | None  # None until `draw`
    draw_masked: DrawMasked | None  # where ranges are constrained
    prompt_ids: np.ndarray | None  # [T]
    prompt_scores: Scores | None  # of those
    vectors: Array | None = None  # [S, D]

    def draw(self, masks: np.ndarray) -> None:
        """Starts the draw of a step with constrained ranges: row i of masks [n, W] uint32 is for the i-th of them."""
        assert self.draw_masked is not None
        self.drawn = self.draw_masked(masks)
        self.draw_masked = None  # lets the logits go

    def collect(self) -> StepResult:
        """Waits for the step and returns what it drew."""
        assert self.drawn is not None
        tokens, scores = np.asarray(self.drawn[0]), self.drawn[1]
        if self.plan.rounds > 1:
            rounds = tokens.T[self.batch.slots].tolist()
            return StepResult(ranges=tuple(RangeResult(token_id=ids[0], following=tuple(ids[1:])) for ids in rounds))
        drawn = None if scores is None else ScoredTokens(tokens, *map(np.asarray, scores))
        prompt = None
        if self.prompt_ids is not None and self.prompt_scores is not None:
            prompt = ScoredTokens(self.prompt_ids, *map(np.asarray, self.prompt_scores))
        vectors = None if self.vectors is None else np.asarray(self.vectors)
        results, ids = [], tokens.tolist()
        where = zip(self.batch.slots.tolist(), self.batch.begins.tolist(), strict=True)
        for r, (slot, begin) in zip(self.plan.ranges, where, strict=True):
            token = ids[slot]
            top = r.sampling.logprobs if r.samples else None
            results.append(
                RangeResult(
                    token_id=token if r.samples else None,
                    logprobs=None if drawn is None or top is None else drawn.at(slot, top),
                    prompt_logprobs=_of_prompt(prompt, r, begin),
                    vector=vectors[slot].copy() if vectors is not None and r.ends_text else None,
                )
            )
        return StepResult(ranges=tuple(results))


def _of_prompt(prompt: ScoredTokens | None, r: Range, begin: int) -> tuple[TokenLogprobs, ...]:
    """Scores of the prompt tokens that follow the positions of `r`, whose first token lies at `begin` of the batch."""
    if prompt is None or r.prompt_logprobs_from is None or r.sampling.prompt_logprobs is None:
        return ()
    # A range that samples ends with the prompt's last token: what follows that one is not part of the prompt.
    count = r.length - 1 if r.samples else r.length
    return tuple(prompt.at(begin + i, r.sampling.prompt_logprobs) for i in range(count))

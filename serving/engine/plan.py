"""One step, written down: frozen integers that the scheduler makes and the executor obeys.

A plan is what a leader sends to its followers, what tests replay, and what a trace records. It names device rows
(`row`: a slot of per-sequence sampler state that a sequence keeps while it is admitted) and pages, never objects.
"""

from dataclasses import dataclass

import numpy as np

from serving.engine.request import Pooling, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Sets up a device row before the step's tokens run: a sequence enters, or comes back after preemption."""

    row: int
    sampling: SamplingParams
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]  # generated so far: for penalties, bad words, and the row's last token
    adapter: int = 0  # the slot of its adapter, from 1; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A run of consecutive positions of one sequence, computed in this step.

    `token_ids` are the tokens at positions start .. start+length-1. Where the first one is not known to the host yet
    (it was sampled by the step in flight and is still on the device), `token_ids` is empty and length is 1: the
    executor reads the row's last token instead.
    """

    row: int
    start: int
    length: int
    token_ids: tuple[int, ...]
    pages: tuple[int, ...]  # the page table, at least ceil((start + length) / page_size) entries
    samples: bool  # draw the token at position start+length from the last logits; False inside a prompt
    sampling: SamplingParams
    num_output: int  # output tokens before the one that this range samples (for min_tokens)
    # Equal to `start` where the range reports logprobs of the prompt's tokens at positions start+1 ..
    # min(start + length, len(prompt) - 1); None where it reports none.
    prompt_logprobs_from: int | None = None
    # So many tokens at the end are guesses at those that the range's own draws will be: a token is drawn after each
    # position from the first guess's predecessor on, for as long as the guesses are what was drawn. `token_ids` lacks
    # the guesses where a draft model makes them.
    guesses: int = 0
    pools: Pooling | None = None  # its hidden states go into the vector of its text; None: they do not
    ends_text: bool = False  # with it that vector is complete, and is to be returned


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Ranges in the order of the flat batch: the `num_decode` ranges of length 1 that sample come first."""

    step: int
    admissions: tuple[Admission, ...]
    ranges: tuple[Range, ...]
    num_decode: int
    constrained: tuple[int, ...] = ()  # the ranges that sample under a grammar, whose masks come after the dispatch
    # Above 1, all ranges decode, and the device goes on by itself for so many tokens of each: what it draws it computes
    # next. The pages of a range hold those positions too.
    rounds: int = 1
    # What the draft model computes before it guesses: up to the last known token of a sequence that it guesses for, and
    # there `guesses` says how many it makes.
    drafting: tuple[Range, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(r.length for r in self.ranges)

    @property
    def guesses(self) -> int:
        """The most that a range has. Above 0, no other step is in flight beside this one."""
        return max(r.guesses for r in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """What the device returned for one range of the plan, in the plan's order."""

    token_id: int | None  # None where the range did not sample; negative where nothing could be drawn
    following: tuple[int, ...] = ()  # what the further rounds drew, or what was drawn after each guess that was right
    logprobs: TokenLogprobs | None = None
    following_logprobs: tuple[TokenLogprobs, ...] = ()
    # Entry i scores the prompt token at position start+1+i, given those before it; only positions that the prompt has.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    vector: np.ndarray | None = None  # [D] float32, of a range that ends a text


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    ranges: tuple[RangeResult, ...]

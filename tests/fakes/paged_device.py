"""A device that obeys step plans and trusts none of them.

Its K and V at a position are one number that stands for all tokens up to there, so a page says exactly which tokens
filled it. Every range is checked against what its row should hold: each earlier position must be in the pages that the
plan names, as it was before the step (whether a range could see what another one writes in the same step depends on
the kernel, so a plan must not need it). The next token is a function of that number: streams are deterministic.
"""

import dataclasses
from dataclasses import dataclass

from serving.engine.plan import Range, RangeResult, StepPlan, StepResult
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenLogprobs

VOCAB_SIZE = 8
_NOTHING = -1


def content(before: int, token_id: int) -> int:
    """What a position holds: its token and, through `before`, every token before it."""
    return hash((before, token_id))


def contents(token_ids: list[int]) -> list[int]:
    held: list[int] = []
    for token_id in token_ids:
        held.append(content(held[-1] if held else 0, token_id))
    return held


def next_token(held: int, sampling: SamplingParams, num_output: int) -> int:
    token_id = held % VOCAB_SIZE
    if num_output < sampling.min_tokens:
        while token_id in sampling.eos_token_ids or token_id in sampling.stop_token_ids:
            token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def logprobs_of(token_id: int, held: int) -> TokenLogprobs:
    """Logprobs of `token_id` after a position that holds `held`."""
    return TokenLogprobs(token_id, -float(held % 97), 1)


@dataclass(frozen=True)
class Stream:
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_token_id: int | None
    prompt_logprobs: tuple[TokenLogprobs, ...]


def expected_stream(request: GenerateRequest, max_model_len: int) -> Stream:
    """What `request` must get from a device that has no pages, no rows and no other requests."""
    sampling, prompt = request.sampling, list(request.prompt_token_ids)
    held = contents(prompt)
    scores: tuple[TokenLogprobs, ...] = ()
    if sampling.prompt_logprobs is not None:
        scores = tuple(logprobs_of(prompt[i], held[i - 1]) for i in range(1, len(prompt)))
    output: list[int] = []
    last = held[-1]
    while len(output) < sampling.max_tokens and len(prompt) + len(output) < max_model_len:
        token_id = next_token(last, sampling, len(output))
        may_stop = len(output) >= sampling.min_tokens
        output.append(token_id)
        last = content(last, token_id)
        if may_stop and token_id in sampling.eos_token_ids:
            return Stream(tuple(output), FinishReason.STOP, None, scores)
        if may_stop and token_id in sampling.stop_token_ids:
            return Stream(tuple(output), FinishReason.STOP, token_id, scores)
    return Stream(tuple(output), FinishReason.LENGTH, None, scores)


@dataclass
class _Row:
    num_prompt: int
    token_ids: list[int]
    held: list[int]
    sampling: SamplingParams


class PagedDevice:
    def __init__(
        self, *, num_pages: int, page_size: int, num_rows: int, max_tokens: int, draft_is_head: bool = False
    ) -> None:
        self._page_size = page_size
        self._num_pages = num_pages
        self._num_rows = num_rows
        self._max_tokens = max_tokens
        self._memory = [_NOTHING] * (num_pages * page_size)
        self._rows: dict[int, _Row] = {}
        self._draft_memory = [_NOTHING] * (num_pages * page_size)  # of a draft model, under the same page numbers
        self._ahead = int(draft_is_head)  # an EAGLE-3 head's entry at a position is made from the token after it
        self._made: dict[int, list[int]] = {}  # its guesses, by row
        self._step = 0
        self.tokens_computed = 0

    def read_page(self, page: int) -> tuple[int, ...]:
        return tuple(self._memory[page * self._page_size : (page + 1) * self._page_size])

    def write_page(self, page: int, contents: tuple[int, ...]) -> None:
        self._memory[page * self._page_size : (page + 1) * self._page_size] = contents

    def run(self, plan: StepPlan) -> StepResult:
        """Runs the next plan in order. Raises AssertionError where it reads or writes what it must not."""
        assert plan.step == self._step, f"step {plan.step} runs in place of step {self._step}"
        self._step += 1
        assert plan.num_tokens <= self._max_tokens
        for i, planned in enumerate(plan.ranges):
            assert (i < plan.num_decode) == (planned.length == 1 and planned.samples)
        for admission in plan.admissions:
            assert 0 <= admission.row < self._num_rows
            token_ids = [*admission.prompt_token_ids, *admission.output_token_ids]
            self._rows[admission.row] = _Row(
                len(admission.prompt_token_ids), token_ids, contents(token_ids), admission.sampling
            )
        used_rows = [planned.row for planned in plan.ranges]
        assert len(set(used_rows)) == len(used_rows), "a row has two ranges"
        assert {admission.row for admission in plan.admissions} <= set(used_rows), "a row is set up and does not run"
        self._made = {planned.row: self._draft(planned, self._rows[planned.row]) for planned in plan.drafting}
        for planned in plan.ranges:
            self._foresee(planned, self._rows[planned.row])
            self._check(planned, self._rows[planned.row])
        slots = [slot for planned in plan.ranges for slot in self._write(planned, self._rows[planned.row])]
        assert len(set(slots)) == len(slots), "two ranges write one position of a page"
        self.tokens_computed += plan.num_tokens
        for planned in plan.ranges:
            self._forget(planned, self._rows[planned.row])
        results = [self._result(planned, self._rows[planned.row]) for planned in plan.ranges]
        assert plan.rounds == 1 or plan.num_decode == len(plan.ranges)
        for _ in range(1, plan.rounds):
            results = [self._go_on(planned, found) for planned, found in zip(plan.ranges, results, strict=True)]
        results = [self._agree(planned, found) for planned, found in zip(plan.ranges, results, strict=True)]
        return StepResult(ranges=tuple(results))

    def _go_on(self, planned: Range, found: RangeResult) -> RangeResult:
        """The next position of a range, from the token that was just drawn."""
        row = self._rows[planned.row]
        assert found.logprobs is None
        assert not row.sampling.needs_row
        position = len(row.token_ids) - 1
        assert position // self._page_size < len(planned.pages), "a further round has no page"
        self._write(dataclasses.replace(planned, start=position, length=1), row)
        held = row.held[-1]
        token_id = next_token(held, row.sampling, len(row.token_ids) - row.num_prompt)
        row.token_ids.append(token_id)
        row.held.append(content(held, token_id))
        return dataclasses.replace(found, following=(*found.following, token_id))

    def _foresee(self, planned: Range, row: _Row) -> None:
        """Takes the guesses for tokens, until they are written."""
        if planned.guesses:
            assert planned.samples
            known = planned.length - planned.guesses
            guesses = planned.token_ids[known:] or tuple(self._made[planned.row])
            assert len(guesses) == planned.guesses
            assert planned.start + planned.length - planned.guesses == len(row.token_ids), "guesses at known tokens"
            for token_id in guesses:
                row.token_ids.append(token_id)
                row.held.append(content(row.held[-1], token_id))

    def _draft(self, planned: Range, row: _Row) -> list[int]:
        """Guesses of a draft model, of which some are right. It must have read all that comes before."""
        size, start, end = self._page_size, planned.start, planned.start + planned.length

        def place(position: int) -> int:
            return planned.pages[position // size] * size + position % size

        assert list(planned.token_ids) == row.token_ids[start + self._ahead : end + self._ahead]
        for position in range(start):
            assert self._draft_memory[place(position)] == row.held[position], "the draft model has not read this"
        for position in range(start, end):
            if self._ahead:
                assert self._memory[place(position)] == row.held[position], "there is no hidden state to read"
            self._draft_memory[place(position)] = row.held[position]
        guesses: list[int] = []
        first, end = end, end + self._ahead
        held = row.held[end - 1]
        for number in range(planned.guesses):
            assert end == len(row.token_ids), "guesses after a token that is not the last one"
            guesses.append(next_token(held, row.sampling, end + number - row.num_prompt) ^ (held % 3 == 0))
            held = content(held, guesses[-1])
            if number < planned.guesses - 1:
                self._draft_memory[place(first + number)] = held
        return guesses

    def _forget(self, planned: Range, row: _Row) -> None:
        if planned.guesses:
            del row.token_ids[-planned.guesses :], row.held[-planned.guesses :]

    def _agree(self, planned: Range, found: RangeResult) -> RangeResult:
        """Draws on, as long as the guesses are right."""
        row = self._rows[planned.row]
        following: list[int] = []
        scores: list[TokenLogprobs] = []
        for guess in planned.token_ids[planned.length - planned.guesses :] or self._made.get(planned.row, []):
            if guess != row.token_ids[-1]:
                break
            held = row.held[-1]
            following.append(next_token(held, row.sampling, len(row.token_ids) - row.num_prompt))
            row.token_ids.append(following[-1])
            row.held.append(content(held, following[-1]))
            scores += [logprobs_of(following[-1], held)] if row.sampling.logprobs is not None else []
        if not following:
            return found
        return dataclasses.replace(found, following=tuple(following), following_logprobs=tuple(scores))

    def _check(self, planned: Range, row: _Row) -> None:
        size, start, end = self._page_size, planned.start, planned.start + planned.length
        assert planned.length >= 1
        assert planned.sampling is row.sampling
        assert end <= len(row.token_ids), "the range goes beyond the tokens that exist"
        if planned.token_ids:
            assert list(planned.token_ids) == row.token_ids[start : start + len(planned.token_ids)]
            assert len(planned.token_ids) in (planned.length, planned.length - planned.guesses)
        else:
            assert planned.length == 1
            assert end == len(row.token_ids), "the row's last token is not the one at this position"
        assert len(planned.pages) * size >= end
        assert all(0 <= page < self._num_pages for page in planned.pages)
        for index in range(-(-start // size)):
            count = min(size, start - index * size)
            at = planned.pages[index] * size
            want = row.held[index * size : index * size + count]
            found = self._memory[at : at + count]
            assert found == want, f"row {planned.row}: page {planned.pages[index]} holds other tokens"

    def _write(self, planned: Range, row: _Row) -> list[int]:
        slots: list[int] = []
        for position in range(planned.start, planned.start + planned.length):
            page = planned.pages[position // self._page_size]
            slots.append(page * self._page_size + position % self._page_size)
            self._memory[slots[-1]] = row.held[position]
        return slots

    def _result(self, planned: Range, row: _Row) -> RangeResult:
        start, end = planned.start, planned.start + planned.length
        scores: tuple[TokenLogprobs, ...] = ()
        if planned.prompt_logprobs_from is not None:
            assert planned.prompt_logprobs_from == start
            last = min(end, row.num_prompt - 1)
            scores = tuple(logprobs_of(row.token_ids[i], row.held[i - 1]) for i in range(start + 1, last + 1))
            assert scores, "a range reports logprobs of no prompt token"
        if not planned.samples:
            return RangeResult(token_id=None, prompt_logprobs=scores)
        assert end - planned.guesses == len(row.token_ids), "a range that is not the sequence's last samples"
        assert planned.num_output == len(row.token_ids) - row.num_prompt
        assert planned.num_output < row.sampling.max_tokens, "the token before was known to be the last one"
        held = row.held[-1]
        token_id = next_token(held, row.sampling, planned.num_output)
        row.token_ids.append(token_id)
        row.held.append(content(held, token_id))
        drawn = logprobs_of(token_id, held) if row.sampling.logprobs is not None else None
        return RangeResult(token_id=token_id, logprobs=drawn, prompt_logprobs=scores)

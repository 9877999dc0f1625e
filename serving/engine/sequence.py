"""Host state of one live request, and its position arithmetic.

    tokens      known to the host: prompt, then output
    in_flight   sampled by plans that are not committed; on the device, not in `tokens`
    computed    positions 0 .. computed-1 have their K and V written by plans already issued, committed or not
    pages       the page table: position p lies in pages[p // page_size]

A prompt and a decode step are one thing here: positions computed .. length-1 are still to be computed, where length
counts the tokens in flight. In decode that is one position.
"""

import math
from collections.abc import Iterable

import numpy as np

from serving.engine.adapter_lease import AdapterLease
from serving.engine.constraint import Constraint
from serving.engine.embedding import PooledEvent
from serving.engine.page_hash import page_digest, root_digest
from serving.engine.plan import Admission, Range, RangeResult
from serving.engine.policies.fairness import Account, output_charge
from serving.engine.request import FinishReason, GenerateRequest, Pooling, TokenEvent, TokenLogprobs
from serving.engine.speculation.guessing import Guessing


class Sequence:
    """One request from arrival to its last event. The scheduler decides; the sequence keeps count."""

    __slots__ = (
        "account",
        "adapter",
        "arrival_number",
        "arrival_time",
        "cached_tokens",
        "computed",
        "constraint",
        "digests",
        "end_tokens",
        "expires_at",
        "finished",
        "forced",
        "furthest",
        "gathered",
        "guessing",
        "in_flight",
        "max_length",
        "num_positions",
        "num_prompt",
        "num_published",
        "page_size",
        "page_table",
        "passed",
        "pooling",
        "queue_seconds",
        "rank",
        "repeats",
        "request",
        "request_id",
        "root",
        "row",
        "sampling",
        "scores_prompt",
        "scoring_only",
        "share_waits",
        "started",
        "token_charge",
        "tokens",
    )

    def __init__(
        self,
        request: GenerateRequest,
        *,
        arrival_number: int,
        arrival_time: float,
        max_model_len: int,
        page_size: int,
        namespace: str,
        constraint: Constraint | None = None,
        rank: int = 0,
        account: Account | None = None,
        adapter: AdapterLease | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.request_id = request.request_id
        self.constraint = constraint  # follows `tokens` when it is asked for a mask, so that nothing here feeds it
        self.sampling = sampling
        self.arrival_number = arrival_number
        self.arrival_time = arrival_time
        self.page_size = page_size
        self.num_prompt = len(request.prompt_token_ids)
        self.tokens = [*request.prompt_token_ids, *request.output_token_ids]
        self.end_tokens = frozenset(sampling.eos_token_ids + sampling.stop_token_ids)
        self.max_length = min(self.num_prompt + sampling.max_tokens, max_model_len)
        self.scoring_only = sampling.max_tokens == 0
        self.pooling = pooling  # of a prompt that becomes a vector; nothing is drawn after it
        # Whether its draws depend on logits and the numbers in the batch alone, so that the device can go on by itself.
        self.repeats = constraint is None and sampling.logprobs is None and not sampling.needs_row
        # The last token of a stream is delivered and never computed, unless nothing is sampled at all.
        self.num_positions = self.max_length if self.scoring_only else self.max_length - 1
        # A stream that continues has delivered its prompt's logprobs with its first event, before it was lost.
        self.scores_prompt = sampling.prompt_logprobs is not None and not request.output_token_ids
        self.gathered: list[TokenLogprobs] = []  # of prompt positions 1 ..

        self.row: int | None = None  # None: not admitted
        self.page_table: tuple[int, ...] = ()  # a tuple, so that a plan can hold it without a copy
        self.computed = 0
        self.in_flight = 0
        self.num_published = 0  # leading pages that were shared with us or offered by us to the prefix cache

        self.adapter = adapter
        self.name_pages(namespace)
        self.rank = rank  # see `policies/order.py`
        self.account = account or Account(request.tenant)
        self.token_charge = output_charge(request.tenant_weight)
        self.expires_at = math.inf if request.deadline_seconds is None else arrival_time + request.deadline_seconds
        self.passed = 0  # admissions of the tenant's that took a later arrival first
        self.furthest = 0  # the most that `computed` has been before a preemption
        self.share_waits = 0  # plans spent waiting for pages that others compute

        self.guessing: Guessing | None = None  # where the engine speculates

        # What the token in flight has to be, and those behind it, where its grammar leaves no choice.
        self.forced: tuple[int, ...] = ()

        self.started = False  # the first event was sent
        self.finished = False
        self.cached_tokens: int | None = None  # at first admission
        self.queue_seconds: float | None = None

    def name_pages(self, namespace: str) -> None:
        """What its pages will be known by. While it has none."""
        of_adapter = b"" if self.adapter is None else self.adapter.digest
        self.root = root_digest(namespace, self.request.cache_salt, of_adapter)
        self.digests: list[bytes] = []

    @property
    def may_be_fed(self) -> bool:
        """Whether tokens that need not be drawn can be fed instead: nothing is kept or reported of their draws."""
        sampling = self.sampling
        return self.guessing is None and sampling.logprobs is None and not sampling.needs_row

    def knows(self, planned: Range) -> bool:
        """Whether the token that a range in flight draws has been fed meanwhile."""
        return planned.num_output < len(self.tokens) - self.num_prompt

    @property
    def remaining(self) -> int:
        """Positions that can be computed now. 0 in decode: the token in flight is known to be the last one."""
        length = len(self.tokens) + self.in_flight
        return (length if length < self.num_positions else self.num_positions) - self.computed

    @property
    def progress(self) -> int:
        """Positions computed at least once: what preemption does not take back."""
        return max(self.computed, self.furthest)

    @property
    def needs_page(self) -> bool:
        """True where the next position lies in a page that the sequence does not have."""
        return self.computed >= len(self.page_table) * self.page_size

    @property
    def num_shareable(self) -> int:
        """Leading pages that may come from the prefix cache: at least the last position has to be computed, or there
        are no logits to sample from, and so has every position whose prompt logprobs are still to be reported, or
        whose hidden state counts."""
        positions = 0 if self.pooling is Pooling.MEAN else len(self.tokens) - 1
        if self.scores_prompt and len(self.gathered) < self.num_prompt - 1:
            positions = len(self.gathered)
        return positions // self.page_size

    @property
    def num_full(self) -> int:
        """Leading pages that issued plans fill with tokens known to the host."""
        return min(self.computed, len(self.tokens)) // self.page_size

    @property
    def may_publish(self) -> bool:
        """Whether the host knows the tokens of a page more than it has published. Asked for every token."""
        return len(self.tokens) >= (self.num_published + 1) * self.page_size

    def digest(self, index: int) -> bytes:
        """The digest of page `index`, all of whose tokens must be known."""
        size = self.page_size
        while len(self.digests) <= index:
            at = len(self.digests)
            parent = self.digests[-1] if at else self.root
            self.digests.append(page_digest(parent, self.tokens[at * size : (at + 1) * size]))
        return self.digests[index]

    def admit(self, row: int, pages: Iterable[int], num_cached: int, now: float) -> Admission:
        """Enters device row `row` with pages for all known tokens, the first `num_cached` of them from the cache."""
        assert self.row is None
        assert self.in_flight == 0
        self.row = row
        self.page_table = tuple(pages)
        self.computed = num_cached * self.page_size
        self.num_published = num_cached
        if self.queue_seconds is None:
            self.queue_seconds = max(0.0, now - self.arrival_time)
            self.cached_tokens = min(self.computed, self.num_prompt)
        return Admission(
            row=row,
            sampling=self.sampling,
            prompt_token_ids=self.request.prompt_token_ids,
            output_token_ids=tuple(self.tokens[self.num_prompt :]),
            adapter=0 if self.adapter is None else self.adapter.slot + 1,
        )

    def leave(self) -> None:
        """Gives up row and pages. The token in flight stays counted: it is still delivered when it is committed."""
        self.row = None
        self.page_table = ()
        self.furthest = self.progress
        self.computed = 0
        if self.guessing is not None:
            self.guessing.read = 0
        self.num_published = 0

    def next_range(self, length: int) -> Range:
        """Plans the next `length` positions, at most `remaining`, for which there must be pages."""
        assert self.row is not None
        start, known = self.computed, len(self.tokens)
        end = start + length
        ends_text = self.pooling is not None and end == known
        samples = end == known + self.in_flight and not self.scoring_only
        planned = Range(
            row=self.row,
            start=start,
            length=length,
            token_ids=() if start >= known else tuple(self.tokens[start:end]),
            pages=self.page_table,
            samples=samples,
            sampling=self.sampling,
            num_output=end - self.num_prompt if end > self.num_prompt else 0,
            prompt_logprobs_from=start if self.scores_prompt and self._scores_from(start) else None,
            pools=self.pooling if ends_text or self.pooling is Pooling.MEAN else None,
            ends_text=ends_text,
        )
        self.computed = end
        self.in_flight += samples
        return planned

    def repeat(self, rounds: int) -> None:
        """Lengthens the range just planned, of one position that samples, by the rounds that the device goes on for;
        those after the last token that the stream may have are not counted, and nobody waits for them."""
        further = min(rounds - 1, self.num_positions - self.computed)
        self.computed += further
        self.in_flight += further

    def guess(self, count: int) -> None:
        """Lengthens the range just planned, of one position that samples, by so many guesses."""
        self.computed += count
        self.in_flight += count

    def settle(self, planned: Range, accepted: int) -> None:
        """Of a range with guesses, in flight alone, so many were right: what was written for the others is not there,
        and the token that was drawn in place of the first of them has yet to be computed."""
        self.computed = planned.start + planned.length - planned.guesses + accepted
        self.in_flight = 1 + accepted

    def gather(self, planned: Range, result: RangeResult) -> None:
        """Keeps the prompt logprobs of a range. After preemption some positions are computed, and scored, again."""
        if planned.prompt_logprobs_from is not None:
            self.gathered.extend(result.prompt_logprobs[len(self.gathered) - planned.prompt_logprobs_from :])
            del self.gathered[self.num_prompt - 1 :]  # nothing of the prompt follows its last token

    def event(
        self,
        token_id: int | None = None,
        logprobs: TokenLogprobs | None = None,
        reason: FinishReason | None = None,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> TokenEvent:
        """The next event of the stream; the first one carries what is known only once."""
        token_ids = () if token_id is None else (token_id,)
        if self.started:
            return TokenEvent(
                request_id=self.request_id,
                token_ids=token_ids,
                logprobs=() if logprobs is None else (logprobs,),
                finish_reason=reason,
                stop_token_id=stop_token_id,
                error=error,
            )
        self.started = True
        return TokenEvent(
            request_id=self.request_id,
            token_ids=token_ids,
            logprobs=() if logprobs is None else (logprobs,),
            prompt_logprobs=tuple(self.gathered) if len(self.gathered) == self.num_prompt - 1 else (),
            finish_reason=reason,
            stop_token_id=stop_token_id,
            cached_tokens=self.cached_tokens,
            queue_seconds=self.queue_seconds,
            error=error,
        )

    def read(self, vector: np.ndarray | None) -> TokenEvent:
        """The last event of a prompt that nothing is drawn after, with its vector where it is pooled."""
        if vector is None:
            return self.event(reason=FinishReason.LENGTH)
        return PooledEvent(
            request_id=self.request_id,
            finish_reason=FinishReason.LENGTH,
            cached_tokens=self.cached_tokens,
            queue_seconds=self.queue_seconds,
            vector=vector,
        )

    def _scores_from(self, start: int) -> bool:
        """Whether a range at `start` has prompt logprobs to report that have not been gathered."""
        return max(start, len(self.gathered)) < self.num_prompt - 1

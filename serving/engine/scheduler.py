"""What runs in the next step: a pure state machine over sequences, rows and pages. No threads, no clock, no device.

    waiting --admission--> running --last token--> (gone)
       ^                     |
       `----- preemption ----'

`plan` and `commit` alternate, with at most one step in flight while the next one is planned:

    plan 0, plan 1, commit 0, plan 2, commit 1, ...       or, without overlap: plan 0, commit 0, plan 1, ...

A sequence whose newest token is still on the device is planned again without knowing it. If that token turns out to
end the stream, the range already planned is a zombie: it runs, and its result is dropped at commit. Results belong to
a Sequence object, never to a row or a request id, so neither can be confused when it is used again meanwhile. A
preempted sequence keeps the token in flight: it is still the stream's next token.

Why nobody starves: the queue is first come, first served; a sequence that waits for pages or for a row stops those
behind it; of the running ones the first in precedence is never a victim while others hold pages, so it always advances.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass

from serving.engine.block_pool import BlockPool
from serving.engine.draft import Draft, Issued
from serving.engine.drain_rate import DrainRate
from serving.engine.finishing import finish_reason
from serving.engine.intake import refuse_malformed, refuse_unfitting
from serving.engine.plan import Range, StepPlan, StepResult
from serving.engine.preemption import choose_victim
from serving.engine.prefix_sharing import PrefixSharing
from serving.engine.request import FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from serving.engine.selection import precedence
from serving.engine.sequence import Sequence
from serving.errors import OverloadedError, RequestError

NOTHING_TO_DRAW = "no token can be drawn: every token is banned, or the logits are not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot; the names are those of `EngineStats`."""

    running: int
    waiting: int
    free_pages: int
    used_pages: int
    prefix_cache_queries: int  # counter, tokens
    prefix_cache_hits: int  # counter, tokens
    preemptions: int  # counter
    steps: int  # counter, plans issued
    prompt_tokens: int  # counter, planned; a prompt computed again after preemption counts again
    generation_tokens: int  # counter, delivered


class Scheduler:
    """Plans steps of at most `max_num_batched_tokens` tokens for at most `max_num_seqs` admitted sequences.

    `max_waiting` bounds the queue of those not admitted, `max_model_len` prompt and output together (tokens),
    `vocab_size` the token ids, `max_share_waits` the plans for which a sequence waits for another one's prefill of
    the same prefix. Times are seconds on one clock of the caller's. Every plan that is returned must be run, in order.
    """

    def __init__(
        self,
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_waiting: int,
        pool: BlockPool,
        vocab_size: int = 2**31,
        max_share_waits: int = 16,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs ({max_num_seqs}) must be in 1 .. max_num_batched_tokens ({max_num_batched_tokens}), "
                "or running sequences could not all step together"
            )
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_waiting = max_waiting
        self._vocab_size = vocab_size
        self._pool = pool
        self._sharing = PrefixSharing(pool, max_waits=max_share_waits)
        self._drain_rate = DrainRate()
        self._sequences: dict[str, Sequence] = {}  # live: waiting or running
        self._waiting: list[Sequence] = []  # by precedence, like _running
        self._running: list[Sequence] = []
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._issued: deque[Issued] = deque()
        self._arrivals = 0
        self._steps = 0
        self._preemptions = 0
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def has_requests(self) -> bool:
        """Whether any stream has not ended."""
        return bool(self._sequences)

    @property
    def num_in_flight(self) -> int:
        """Plans issued and not committed."""
        return len(self._issued)

    @property
    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._running),
            waiting=len(self._waiting),
            free_pages=self._pool.num_available,
            used_pages=self._pool.num_used,
            prefix_cache_queries=self._queried_tokens,
            prefix_cache_hits=self._hit_tokens,
            preemptions=self._preemptions,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
        )

    def add(self, request: GenerateRequest, now: float) -> None:
        """Queues a request that is certain to be able to run.

        Raises ContextLengthError where it does not fit the window or the pool, RequestError where it is malformed,
        OverloadedError where the queue is full.
        """
        refuse_malformed(request, vocab_size=self._vocab_size)
        if request.request_id in self._sequences:
            raise RequestError(
                f"request_id {request.request_id!r} belongs to a live stream",
                param="request_id",
                code="duplicate_request_id",
            )
        sequence = Sequence(
            request,
            arrival_number=self._arrivals,
            arrival_time=now,
            max_model_len=self._max_model_len,
            page_size=self._pool.page_size,
            namespace=self._pool.namespace,
        )
        refuse_unfitting(sequence, self._pool, max_model_len=self._max_model_len)
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(
                f"the queue is full: {len(self._waiting)} requests are waiting",
                retry_after=self._drain_rate.retry_after(len(self._waiting)),
            )
        self._arrivals += 1
        self._sequences[request.request_id] = sequence
        insort(self._waiting, sequence, key=precedence)

    def abort(self, request_id: str, *, error: str | None = None) -> TokenEvent | None:
        """Ends a stream now, with ABORT, or with ERROR and its text; None where there is no such live stream. Its row
        and pages are free for the next plan; what is in flight for it is dropped when it is committed."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._remove(sequence)
        return sequence.event(reason=FinishReason.ABORT if error is None else FinishReason.ERROR, error=error)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None where nothing can run before something is committed or added.

        Raises RuntimeError where two plans are in flight already.
        """
        if len(self._issued) > 1:
            raise RuntimeError("two steps are in flight: commit one before planning the next")
        draft = Draft(self._max_num_batched_tokens)
        self._plan_running(draft)
        self._plan_admissions(draft, now)
        return self._issue(draft)

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Takes in what the oldest plan in flight computed. One event for each stream that got a token or ended.

        Raises ValueError where `plan` is not that plan or `result` does not answer it.
        """
        if not self._issued or self._issued[0].plan is not plan:
            raise ValueError(f"step {plan.step} is not the oldest one in flight")
        if len(result.ranges) != len(plan.ranges):
            raise ValueError(f"step {plan.step} has {len(plan.ranges)} ranges, its result {len(result.ranges)}")
        if any(p.samples == (r.token_id is None) for p, r in zip(plan.ranges, result.ranges, strict=True)):
            raise ValueError(f"step {plan.step}: a range that samples must have a token, and no other may")
        issued = self._issued.popleft()
        events: list[TokenEvent] = []
        for sequence, planned, computed in zip(issued.owners, plan.ranges, result.ranges, strict=True):
            if sequence.finished:
                continue
            if planned.prompt_logprobs_from is not None:
                sequence.gather(planned, computed)
            if computed.token_id is not None and computed.token_id < 0:
                self._remove(sequence)
                events.append(sequence.event(reason=FinishReason.ERROR, error=NOTHING_TO_DRAW))
            elif computed.token_id is not None:
                events.append(self._accept(sequence, planned, computed.token_id, computed.logprobs))
            elif sequence.scoring_only and planned.start + planned.length == sequence.num_prompt:
                self._remove(sequence)
                events.append(sequence.event(reason=FinishReason.LENGTH))
        return events

    def check(self) -> None:
        """Raises AssertionError where rows, pages and sequences do not add up. For tests: visits everything."""
        self._pool.check([sequence.page_table for sequence in self._running])
        self._sharing.check(self._running)
        rows = [sequence.row for sequence in self._running]
        assert sorted([*self._free_rows, *(row for row in rows if row is not None)]) == list(range(self._max_num_seqs))
        assert {id(s) for s in self._sequences.values()} == {id(s) for s in [*self._waiting, *self._running]}
        assert len(self._sequences) == len(self._waiting) + len(self._running)
        for queue in (self._waiting, self._running):
            assert [precedence(s) for s in queue] == sorted(precedence(s) for s in queue)
        for sequence in self._waiting:
            assert sequence.row is None
            assert not sequence.page_table
        for sequence in self._running:
            assert sequence.row is not None
            assert sequence.remaining >= 0
            assert sequence.computed <= len(sequence.page_table) * sequence.page_size
        for sequence in self._sequences.values():
            samples = sum(
                owner is sequence and planned.samples
                for issued in self._issued
                for owner, planned in zip(issued.owners, issued.plan.ranges, strict=True)
            )
            assert sequence.in_flight == samples
            assert not sequence.finished

    def _plan_running(self, draft: Draft) -> None:
        """One token for each sequence that has one position to compute; what the budget then leaves goes to admitted
        prompts, which have had their pages since admission. Both in precedence."""
        prefills: list[Sequence] = []
        for sequence in tuple(self._running):
            remaining = sequence.remaining
            if remaining > 1:
                prefills.append(sequence)
            # One without a row was preempted just now, by one before it.
            elif remaining == 1 and sequence.row is not None:
                if sequence.needs_page and not self._take_page(sequence):
                    continue
                draft.add(sequence, 1)
        for sequence in prefills:
            if draft.budget < 1:
                break
            if sequence.row is not None:
                draft.add(sequence, min(sequence.remaining, draft.budget))

    def _plan_admissions(self, draft: Draft, now: float) -> None:
        """Rows and pages for those who wait, in precedence, while there are rows, pages and budget."""
        departures = 0
        for sequence in tuple(self._waiting):
            if draft.budget < 1 or not self._free_rows:
                break
            # A preempted sequence whose last token is still on the device cannot be set up before the host has it.
            if sequence.in_flight:
                break
            cached = self._sharing.cached_pages(sequence)
            if self._sharing.must_wait(sequence, len(cached)):
                continue
            pages = self._admission_pages(sequence, cached)
            if pages is None:
                break
            departures += 1
            self._admit(sequence, pages, len(cached), draft, now)
        self._drain_rate.observe(now, departures)

    def _admission_pages(self, sequence: Sequence, cached: list[int]) -> list[int] | None:
        """Pages for all tokens known, at once, so that a prompt once admitted never waits for pages; None where they
        would leave less than a page for each running sequence, which would soon preempt the newcomer again."""
        count = self._pool.pages_for(len(sequence.tokens)) - len(cached)
        headroom = len(self._running)
        if self._pool.num_available - self._pool.num_idle(cached) < count + headroom:
            return None
        self._pool.share(cached)
        taken = self._pool.take(count)
        assert taken is not None
        return cached + taken

    def _admit(self, sequence: Sequence, pages: list[int], num_cached: int, draft: Draft, now: float) -> None:
        first_time = sequence.queue_seconds is None
        draft.admissions.append(sequence.admit(self._free_rows.pop(), pages, num_cached, now))
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=precedence)
        self._sharing.announce(sequence)
        if first_time:
            self._queried_tokens += len(sequence.tokens)
            self._hit_tokens += sequence.computed
        draft.add(sequence, min(sequence.remaining, draft.budget))

    def _issue(self, draft: Draft) -> StepPlan | None:
        if not draft.decoding and not draft.prefilling:
            return None
        issued = draft.issue(self._steps)
        self._steps += 1
        self._issued.append(issued)
        for sequence, planned in zip(issued.owners, issued.plan.ranges, strict=True):
            if planned.start < sequence.num_prompt:
                self._prompt_tokens += min(planned.start + planned.length, sequence.num_prompt) - planned.start
            if planned.token_ids and sequence.may_publish:
                self._sharing.publish(sequence)
        return issued.plan

    def _accept(self, sequence: Sequence, planned: Range, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        """Appends the token that `planned` sampled, and ends the stream where that ends it."""
        sequence.tokens.append(token_id)
        sequence.in_flight -= 1
        self._generation_tokens += 1
        if sequence.may_publish:
            self._sharing.publish(sequence)
        reason, stop_token_id = finish_reason(
            token_id,
            sequence.sampling,
            num_output=planned.num_output,
            num_tokens=len(sequence.tokens),
            max_tokens=sequence.max_length,
        )
        if reason is not None:
            self._remove(sequence)
        return sequence.event(token_id, logprobs, reason, stop_token_id)

    def _take_page(self, sequence: Sequence) -> bool:
        """One more page for a running sequence; False where it had to give up its own instead.

        Decodes are planned in precedence and the victim is the last in precedence, so the victim has no range in this
        plan: its pages may be written by others in it.
        """
        while (pages := self._pool.take(1)) is None:
            victim = choose_victim(self._running)
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.page_table = (*sequence.page_table, *pages)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue, at its place by arrival; its full pages stay in the cache while nobody needs them."""
        self._stop_running(sequence)
        insort(self._waiting, sequence, key=precedence)
        self._preemptions += 1

    def _remove(self, sequence: Sequence) -> None:
        """The stream has ended."""
        sequence.finished = True
        del self._sequences[sequence.request_id]
        if sequence.row is None:
            self._waiting.remove(sequence)
        else:
            self._stop_running(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self._running.remove(sequence)
        self._free_rows.append(sequence.row)
        self._sharing.withdraw(sequence)
        self._pool.release(sequence.page_table)
        sequence.leave()

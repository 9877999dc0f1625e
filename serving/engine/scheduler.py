"""What runs in the next step: a pure state machine over sequences, rows and pages. No threads, no clock, no device.

`plan` and `commit` alternate, with at most one step in flight while the next one is planned:

    plan 0, plan 1, commit 0, plan 2, commit 1, ...       or, without overlap: plan 0, commit 0, plan 1, ...

A sequence whose newest token is still on the device is planned again without knowing it. If that token turns out to
end the stream, the range already planned is a zombie: it runs, and its result is dropped at commit. Results belong to
a Sequence object, never to a row or a request id, so neither can be confused when it is used again meanwhile. A
preempted sequence keeps the token in flight: it is still the stream's next token.

What is decided by whom: `step_planner.py` fills a step, `roster.py` knows who holds what, `policies/` say who goes
first, who is served next, who gives way, and how large a step may be.

Why nobody starves: whoever's turn it is stops those behind it until it fits; turns go round (`policies/fairness.py`)
and passing is bounded (`policies/hits.py`); of the running ones the first in precedence is never a victim while others
hold pages, so it always advances; and a lower class has its elder (`policies/aging.py`).
"""

import itertools
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from serving.engine.adapter_lease import AdapterLease
from serving.engine.block_pool import BlockPool
from serving.engine.constraint import Constraint
from serving.engine.draft import Draft, Issued
from serving.engine.finishing import finish_reason
from serving.engine.intake import refuse_malformed, refuse_unfitting, refuse_unpinnable
from serving.engine.plan import Range, RangeResult, StepPlan, StepResult
from serving.engine.policies.aging import Aging
from serving.engine.policies.deadline import Deadlines
from serving.engine.policies.fairness import most_served
from serving.engine.policies.order import RANKS
from serving.engine.prefix_pins import PinnedPrefix, PrefixPins
from serving.engine.prefix_sharing import PrefixSharing
from serving.engine.request import FinishReason, GenerateRequest, Pooling, Priority, TokenEvent, TokenLogprobs
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence
from serving.engine.speculation.speculator import Speculator
from serving.engine.step_cost import StepCost, buckets_up_to
from serving.engine.step_planner import BURST_SECONDS, StepPlanner
from serving.engine.tiers.page_tiers import PageTiers
from serving.engine.tiers.restores import Restores
from serving.errors import OverloadedError, RequestError

NOTHING_TO_DRAW = "no token can be drawn: every token is banned, or the logits are not finite"
_TENANTS_EVERY = 1.0  # seconds between two looks at who was served most


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot; the names are those of `EngineStats`."""

    running: int
    waiting: int
    waiting_interactive: int
    waiting_standard: int
    waiting_batch: int
    free_pages: int
    used_pages: int
    pinned_pages: int
    prefix_cache_queries: int  # counter, tokens
    prefix_cache_hits: int  # counter, tokens
    preemptions: int  # counter
    deadline_drops: int  # counter, streams ended by their deadline before anything of them was computed
    deadline_stops: int  # counter, those ended by it later
    steps: int  # counter, plans issued
    prompt_tokens: int  # counter, planned; a prompt computed again after preemption counts again
    generation_tokens: int  # counter, delivered
    fed_tokens: int  # counter, of those, forced by a grammar and not drawn
    guessed_tokens: int  # counter, by speculation
    accepted_tokens: int  # counter, those that were right
    tenant_service: tuple[tuple[str, float], ...]  # of those served most, see `policies/fairness.py`


class Scheduler:
    """Plans steps of at most `max_num_batched_tokens` tokens for at most `max_num_seqs` admitted sequences.

    `max_waiting` bounds the queue of those not admitted, `max_model_len` prompt and output together (tokens),
    `vocab_size` the token ids, `max_share_waits` the plans for which a sequence waits for another one's prefill of
    the same prefix. `token_buckets` are the step sizes that are compiled (empty: not known), `target_inter_token` the
    seconds that a step may take while streams of the foreground decode (None: any), `aging` the seconds for which
    a class may stand still, `decode_rounds` the tokens that the device draws of each sequence by itself where nothing
    else is to be done, and that takes no more than `burst_seconds`, `speculator` what guesses at tokens, `tiers` what
    keeps the pages that `pool` gives up: their moves are to be run after each plan. Times are seconds on one clock of
    the caller's. Every plan that is returned must be run, in order.
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
        token_buckets: tuple[int, ...] = (),
        target_inter_token: float | None = None,
        aging: float = 30.0,
        decode_rounds: int = 1,
        burst_seconds: float = BURST_SECONDS,
        speculator: Speculator | None = None,
        tiers: PageTiers | None = None,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs ({max_num_seqs}) must be in 1 .. max_num_batched_tokens ({max_num_batched_tokens}), "
                "or running sequences could not all step together"
            )
        self._max_model_len = max_model_len
        self._max_waiting = max_waiting
        self._vocab_size = vocab_size
        self._pool = pool
        self._pins = PrefixPins(pool, reserve=pool.pages_for(max_model_len))
        sharing = PrefixSharing(pool, self._pins, max_waits=max_share_waits)
        self._sharing = sharing
        self._roster = Roster(pool, sharing, num_rows=max_num_seqs)
        self._cost = StepCost(token_buckets or buckets_up_to(max_num_batched_tokens))
        self._restores = None if tiers is None else Restores(pool, self._pins, tiers, self._cost)
        self._planner = StepPlanner(
            self._roster,
            self._cost,
            max_num_batched_tokens=max_num_batched_tokens,
            target_seconds=target_inter_token,
            max_model_len=max_model_len,
            decode_rounds=decode_rounds,
            burst_seconds=burst_seconds,
            speculator=speculator,
            restores=self._restores,
        )
        self._speculator = speculator
        self._deadlines = Deadlines()
        self._aging = Aging(aging)
        self._issued: deque[Issued] = deque()
        self._ended: list[TokenEvent] = []
        self._arrivals = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._fed_tokens = 0
        self._deadline_drops = 0
        self._deadline_stops = 0
        self._tenant_service: tuple[tuple[str, float], ...] = ()
        self._tenants_counted_at = float("-inf")

    @property
    def has_requests(self) -> bool:
        """Whether any stream has not ended."""
        return len(self._roster) > 0

    @property
    def num_in_flight(self) -> int:
        """Plans issued and not committed."""
        return len(self._issued)

    @property
    def is_restoring(self) -> bool:
        """Whether pages are on their way to the device, so that a plan may have nothing to do until they come."""
        return self._restores is not None and self._restores.is_waiting

    def tend(self) -> None:
        """Hears of copies between the tiers and begins others, as every plan does first."""
        if self._restores is not None:
            self._restores.begin_plan()

    @property
    def speculation(self) -> str:
        """What guesses at tokens; "" where nothing does."""
        return "" if self._speculator is None else self._speculator.kind

    @property
    def stats(self) -> SchedulerStats:
        waiting = self._roster.waiting
        return SchedulerStats(
            running=self._roster.num_running,
            waiting=len(waiting),
            waiting_interactive=waiting.count(Priority.INTERACTIVE),
            waiting_standard=waiting.count(Priority.STANDARD),
            waiting_batch=waiting.count(Priority.BATCH),
            free_pages=self._pool.num_available,
            used_pages=self._pool.num_used,
            pinned_pages=self._pins.num_pages,
            prefix_cache_queries=self._planner.queried_tokens,
            prefix_cache_hits=self._planner.hit_tokens,
            preemptions=self._roster.preemptions,
            deadline_drops=self._deadline_drops,
            deadline_stops=self._deadline_stops,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            fed_tokens=self._fed_tokens,
            guessed_tokens=0 if self._speculator is None else self._speculator.guessed,
            accepted_tokens=0 if self._speculator is None else self._speculator.accepted,
            tenant_service=self._tenant_service,
        )

    def add(
        self,
        request: GenerateRequest,
        now: float,
        constraint: Constraint | None = None,
        adapter: AdapterLease | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        """Queues a request that is certain to be able to run. `constraint` is its grammar's, `adapter` holds its slot;
        with `pooling` its prompt becomes a vector, and max_tokens is 0.

        Raises ContextLengthError where it does not fit the window or the pool, RequestError where it is malformed,
        OverloadedError where the queue is full.
        """
        refuse_malformed(request, vocab_size=self._vocab_size)
        if self._roster.find(request.request_id) is not None:
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
            constraint=constraint,
            rank=RANKS[request.priority],
            account=self._roster.waiting.account(request),
            adapter=adapter,
            pooling=pooling,
        )
        refuse_unfitting(sequence, self._pool, max_model_len=self._max_model_len)
        waiting = len(self._roster.waiting)
        if waiting >= self._max_waiting:
            raise OverloadedError(
                f"the queue is full: {waiting} requests are waiting",
                retry_after=self._planner.drain_rate.retry_after(waiting),
            )
        if not waiting:  # also where those who waited were aborted, and no plan was made since
            self._planner.drain_rate.restart()
        self._arrivals += 1
        self._roster.enter(sequence)
        if request.deadline_seconds is not None:
            self._deadlines.add(sequence, len(self._roster))

    def abort(self, request_id: str, *, error: str | None = None) -> TokenEvent | None:
        """Ends a stream now, with ABORT, or with ERROR and its text; None where there is no such live stream. Its row
        and pages are free for the next plan; what is in flight for it is dropped when it is committed."""
        sequence = self._roster.find(request_id)
        if sequence is None:
            return None
        self._roster.remove(sequence)
        return sequence.event(reason=FinishReason.ABORT if error is None else FinishReason.ERROR, error=error)

    def pin(
        self,
        name: str,
        token_ids: tuple[int, ...],
        *,
        salt: str,
        seconds: float,
        now: float,
        owner: str = "",
        most: int | None = None,
    ) -> PinnedPrefix:
        """Keeps the pages of a prefix in the cache for `seconds`, in place of what `name` pinned before; those that
        nobody has computed yet are kept once a stream has. Raises RequestError, OverloadedError."""
        refuse_unpinnable(name, token_ids, seconds, vocab_size=self._vocab_size)
        self._pins.expire(now)  # no plan may have come since
        return replace(self._pins.pin(name, token_ids, salt, now + seconds, owner=owner, most=most), seconds=seconds)

    def pinned(self, owner: str, now: float) -> list[PinnedPrefix]:
        """The owner's pins."""
        self._pins.expire(now)
        return self._pins.owned(owner, now)

    def unpin(self, name: str, now: float, *, owner: str = "") -> bool:
        """Gives a pinned prefix back to the cache before its time; False where the owner has none of that name."""
        self._pins.expire(now)
        return self._pins.unpin(name, owner=owner)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None where nothing can run before something is committed or added. Streams whose deadline has
        come, or cannot be met, end here: `take_ended` has their events.

        Raises RuntimeError where two plans are in flight already.
        """
        if len(self._issued) > 1:
            raise RuntimeError("two steps are in flight: commit one before planning the next")
        self.expire(now)
        self.tend()
        for sequence in self._aging.new_elders(self._roster, now):
            self._roster.promote(sequence)
        if self._speculator is not None and self._waits_for_tokens(self._speculator):
            return None
        draft = self._planner.draft(now)
        for sequence in draft.hopeless:
            self._end_at_deadline(sequence)
        if now - self._tenants_counted_at >= _TENANTS_EVERY:
            self._tenants_counted_at = now
            self._tenant_service = most_served((a.tenant, a.charged) for a in self._roster.waiting.accounts())
        return self._issue(draft, now)

    def expire(self, now: float) -> None:
        """Ends pins and streams whose time has come, as every plan does first."""
        self._pins.expire(now)
        for sequence in self._deadlines.expired(now):
            self._end_at_deadline(sequence)

    def forget_pages(self, namespace: str) -> None:
        """What the pages hold is lost, or was computed with other weights, and pages to come are known by another
        namespace. Streams that run go back to the queue, and are computed again from their tokens; pins wait for
        their pages. With no plan in flight."""
        assert not self._issued
        for sequence in [*self._roster.background, *self._roster.foreground]:
            self._roster.preempt(sequence)
        self._pins.release()
        self._pool.forget(namespace)
        self._pins.renew()
        for sequence in self._roster:
            sequence.name_pages(namespace)

    def take_ended(self) -> list[TokenEvent]:
        """The last events of streams that plans have ended since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    def constrained(self) -> list[Sequence]:
        """The owners of the newest plan's constrained ranges, in its order; some may have ended since it was made."""
        newest = self._issued[-1]
        return [newest.owners[i] for i in newest.plan.constrained]

    def commit(self, plan: StepPlan, result: StepResult, seconds: float | None = None) -> list[TokenEvent]:
        """Takes in what the oldest plan in flight computed, and in how many seconds, where that was measured. One event
        for each stream that got a token or ended.

        Raises ValueError where `plan` is not that plan or `result` does not answer it.
        """
        if not self._issued or self._issued[0].plan is not plan:
            raise ValueError(f"step {plan.step} is not the oldest one in flight")
        if len(result.ranges) != len(plan.ranges):
            raise ValueError(f"step {plan.step} has {len(plan.ranges)} ranges, its result {len(result.ranges)}")
        if [planned.samples for planned in plan.ranges] != [found.token_id is not None for found in result.ranges]:
            raise ValueError(f"step {plan.step}: a range that samples must have a token, and no other may")
        issued = self._issued.popleft()
        if seconds is not None and not plan.guesses:
            self._cost.observe(issued.num_tokens, seconds / plan.rounds)
        events: list[TokenEvent] = []
        accepted = 0
        for sequence, planned, computed in zip(issued.owners, plan.ranges, result.ranges, strict=True):
            if sequence.finished:
                continue
            if planned.samples and sequence.knows(planned):
                continue
            if planned.prompt_logprobs_from is not None:
                sequence.gather(planned, computed)
            token_id = computed.token_id
            if token_id is None:
                if sequence.scoring_only and planned.start + planned.length == sequence.num_prompt:
                    self._roster.remove(sequence)
                    events.append(sequence.read(computed.vector))
            elif token_id < 0:
                self._roster.remove(sequence)
                events.append(sequence.event(reason=FinishReason.ERROR, error=NOTHING_TO_DRAW))
            else:
                if planned.guesses:
                    sequence.settle(planned, len(computed.following))
                event = self._accept(sequence, planned.num_output, token_id, computed.logprobs)
                if computed.following and event.finish_reason is None:
                    event = self._accept_following(sequence, planned.num_output, event, computed)
                if sequence.forced and event.finish_reason is None:
                    event = self._feed(sequence, event)
                if planned.guesses:
                    event = self._judge(sequence, planned, computed, event)
                accepted += len(event.token_ids)
                events.append(event)
        self._generation_tokens += accepted
        return events

    def check(self) -> None:
        """Raises AssertionError where rows, pages and sequences do not add up. For tests: visits everything."""
        self._roster.check(self._pins.tables)
        for sequence in self._roster:
            samples = [
                issued.plan.rounds + planned.guesses
                for issued in self._issued
                for owner, planned in zip(issued.owners, issued.plan.ranges, strict=True)
                if owner is sequence and planned.samples and not sequence.knows(planned)
            ]
            assert len(samples) <= sequence.in_flight <= sum(samples)

    def _waits_for_tokens(self, speculator: Speculator) -> bool:
        """Whether the next plan must know the tokens that are in flight, or would be better for it."""
        if not self._issued:
            return False
        newest, roster = self._issued[-1].plan, self._roster
        if newest.guesses:
            return True
        if newest.num_decode < len(newest.ranges) or newest.admissions or (len(roster.waiting) and roster.free_rows):
            return False
        return speculator.would_guess([*roster.foreground, *roster.background])

    def _feed(self, sequence: Sequence, event: TokenEvent) -> TokenEvent:
        """`event` with the tokens that have to follow its own by the grammar: they are computed as part of a prompt
        would be. What a plan in flight draws in the place of the first of them is dropped when it is committed."""
        forced, sequence.forced = sequence.forced, ()
        room = sequence.max_length - 1 - len(sequence.tokens)  # the last token is always drawn, and ends the stream
        if forced[0] != event.token_ids[-1] or room < 1:
            return event
        fed = tuple(itertools.takewhile(lambda token_id: token_id not in sequence.end_tokens, forced[1 : 1 + room]))
        if not fed:
            return event
        sequence.in_flight = 0
        sequence.tokens.extend(fed)
        sequence.account.charged += len(fed) * sequence.token_charge
        if sequence.may_publish:
            self._sharing.publish(sequence)
        self._fed_tokens += len(fed)
        return replace(event, token_ids=(*event.token_ids, *fed))

    def _judge(self, sequence: Sequence, planned: Range, computed: RangeResult, event: TokenEvent) -> TokenEvent:
        """`event` with what became of the guesses of its range."""
        assert self._speculator is not None
        self._speculator.observe(sequence, planned, len(computed.following))
        delivered = max(len(event.token_ids) - 1, 0)
        return replace(event, guessed_tokens=planned.guesses, accepted_tokens=delivered)

    def _issue(self, draft: Draft, now: float) -> StepPlan | None:
        if not draft.decoding and not draft.prefilling:
            if self._speculator is not None and not self._issued:
                self._speculator.rest()
            return None
        issued = draft.issue(self._steps)
        self._steps += 1
        self._issued.append(issued)
        if self._speculator is not None:
            self._speculator.issue(issued.plan, issued.owners, now)
        for sequence, planned in zip(issued.owners, issued.plan.ranges, strict=True):
            if planned.start < sequence.num_prompt:
                self._prompt_tokens += min(planned.start + planned.length, sequence.num_prompt) - planned.start
            if planned.token_ids and sequence.may_publish:
                self._sharing.publish(sequence)
        return issued.plan

    def _accept(self, sequence: Sequence, num_output: int, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        """A token that was sampled after `num_output` others."""
        return sequence.event(token_id, logprobs, *self._take(sequence, num_output, token_id))

    def _take(self, sequence: Sequence, num_output: int, token_id: int) -> tuple[FinishReason | None, int | None]:
        """Appends the token; where it ends the stream, why, and the stop token that did."""
        tokens = sequence.tokens
        tokens.append(token_id)
        sequence.in_flight -= 1
        sequence.account.charged += sequence.token_charge
        if sequence.may_publish:
            self._sharing.publish(sequence)
        if token_id not in sequence.end_tokens and len(tokens) < sequence.max_length:
            return None, None
        reason, stop_token_id = finish_reason(
            token_id,
            sequence.sampling,
            num_output=num_output,
            num_tokens=len(tokens),
            max_tokens=sequence.max_length,
        )
        if reason is not None:
            self._roster.remove(sequence)
        return reason, stop_token_id

    def _accept_following(
        self, sequence: Sequence, num_output: int, event: TokenEvent, computed: RangeResult
    ) -> TokenEvent:
        """`event` with the tokens that follow, up to the one that ends the stream."""
        token_ids, logprobs = list(event.token_ids), list(event.logprobs)
        ended: dict[str, Any] = {}
        for number, token_id in enumerate(computed.following, 1):
            if token_id < 0:
                self._roster.remove(sequence)
                ended = {"finish_reason": FinishReason.ERROR, "error": NOTHING_TO_DRAW}
                break
            token_ids.append(token_id)
            logprobs += computed.following_logprobs[number - 1 : number]
            reason, stop_token_id = self._take(sequence, num_output + number, token_id)
            if reason is not None:
                ended = {"finish_reason": reason, "stop_token_id": stop_token_id}
                break
        return replace(event, token_ids=tuple(token_ids), logprobs=tuple(logprobs), **ended)

    def _end_at_deadline(self, sequence: Sequence) -> None:
        if sequence.queue_seconds is None:
            self._deadline_drops += 1
        else:
            self._deadline_stops += 1
        self._roster.remove(sequence)
        self._ended.append(sequence.event(reason=FinishReason.DEADLINE))

"""Fills one step: who computes what in it. The policies decide; here is the order in which they are asked.

    1  a token for each running sequence of the foreground
    2  prefill of those, as far as the step's budget goes
    3  admission of those of the foreground that wait; for them, background sequences give up rows and pages
    4  the same for the background, with what is left
    5  guesses for sequences, where all of them decode
    6  several tokens for each sequence at once, where all of them decode, without guesses, and nobody waits

With batch work absent, 4 is nothing. A background sequence is looked at only when all others have their part, so it
yields within the step in which somebody else needs its row, its pages or its tokens.
"""

from collections.abc import Collection

from serving.engine.draft import Draft
from serving.engine.drain_rate import DrainRate
from serving.engine.policies.chunking import step_tokens
from serving.engine.policies.deadline import is_hopeless
from serving.engine.policies.fairness import prompt_charge
from serving.engine.policies.order import BACKGROUND, BACKGROUND_RANKS, FOREGROUND_RANKS
from serving.engine.policies.victim import choose_victim
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence
from serving.engine.speculation.speculator import Speculator
from serving.engine.step_cost import StepCost
from serving.engine.tiers.restores import Restores

BURST_SECONDS = 0.04  # that the device may go on by itself: who arrives meanwhile waits for it, and for one more


class StepPlanner:
    """Plans steps of at most `max_num_batched_tokens`; with `target_seconds`, of no more than fit between two tokens
    of a stream of the foreground, by what `cost` has measured."""

    def __init__(
        self,
        roster: Roster,
        cost: StepCost,
        *,
        max_num_batched_tokens: int,
        target_seconds: float | None,
        max_model_len: int,
        decode_rounds: int = 1,
        burst_seconds: float = BURST_SECONDS,
        speculator: Speculator | None = None,
        restores: Restores | None = None,
    ) -> None:
        self.drain_rate = DrainRate()
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._roster = roster
        self._cost = cost
        self._max_tokens = max_num_batched_tokens
        self._target_seconds = target_seconds
        self._max_model_len = max_model_len
        self._rounds = decode_rounds
        self._burst_seconds = burst_seconds
        self._restores = restores
        self._speculator = speculator
        if speculator is not None:
            speculator.cost = cost

    def draft(self, now: float) -> Draft:
        """The next step; `draft.hopeless` are those found waiting whose deadline cannot be met, to be ended."""
        roster = self._roster
        draft = Draft(self._max_tokens, self._max_tokens)
        prefills = self._add_decodes(draft, roster.foreground)
        if self._target_seconds is not None and draft.decodes:
            draft.limit(step_tokens(self._cost, self._target_seconds, len(draft.decodes), self._max_tokens))
        self._add_chunks(draft, prefills)
        departures, blocked = self._admit_waiting(draft, FOREGROUND_RANKS, now)
        if roster.background:
            prefills = self._add_decodes(draft, roster.background)
            self._add_chunks(draft, prefills)
        if not blocked:
            departures += self._admit_waiting(draft, BACKGROUND_RANKS, now)[0]
        self.drain_rate.observe(now, departures, len(roster.waiting))
        if self._speculator is not None:
            self._speculator.extend(draft, roster.pool)
        if self._rounds > 1 and self._target_seconds is None and self._may_repeat(draft):
            draft.repeat(self._rounds)
        return draft

    def _may_repeat(self, draft: Draft) -> bool:
        """Whether nothing can change before the device has drawn several tokens of each sequence: nobody waits, all
        decode, nobody who comes meanwhile waits long, and there are pages for what is drawn. Pages taken for it in vain
        are used in the steps to come."""
        if draft.chunks or draft.admissions or not draft.decoding or len(self._roster.waiting):
            return False
        step = self._cost.seconds(self._cost.buckets_from(len(draft.decoding))[0])
        if step is None or step * self._rounds > self._burst_seconds:
            return False
        further, useful = self._rounds - 1, False
        for sequence in draft.decoding:
            if not sequence.repeats or sequence.computed + further > self._max_model_len:
                return False
            useful = useful or sequence.num_positions - sequence.computed >= further
        return useful and all(self._cover(sequence, further) for sequence in draft.decoding)

    def _cover(self, sequence: Sequence, further: int) -> bool:
        """Pages for `further` positions more, if the pool has them to spare; nobody is preempted for it."""
        missing = self._roster.pool.pages_for(sequence.computed + further) - len(sequence.page_table)
        if missing > 0:
            taken = self._roster.pool.take(missing)
            if taken is None:
                return False
            sequence.page_table = (*sequence.page_table, *taken)
        return True

    def _add_decodes(self, draft: Draft, running: list[Sequence]) -> list[Sequence]:
        """One token for each sequence that has one position to compute, in precedence; returns those that have more.
        A prompt has had its pages since admission; where tokens that were fed have none, they come one by one."""
        prefills: list[Sequence] = []
        for sequence in tuple(running):
            remaining = sequence.remaining
            # One without a row was preempted just now, by one before it.
            if sequence.row is None:
                continue
            if remaining > 1 and self._cover(sequence, remaining):
                prefills.append(sequence)
            elif remaining >= 1:
                if draft.budget < 1:
                    break
                if sequence.needs_page and not self._take_page(draft, sequence):
                    continue
                draft.add(sequence, 1)
        return prefills

    def _add_chunks(self, draft: Draft, prefills: list[Sequence]) -> None:
        for sequence in prefills:
            if draft.budget < 1:
                break
            if sequence.row is not None:
                draft.add(sequence, min(sequence.remaining, draft.budget))

    def _admit_waiting(self, draft: Draft, ranks: Collection[int], now: float) -> tuple[int, bool]:
        """Rows and pages for those of `ranks` who wait, while there is budget. How many were admitted, and whether one
        found no room: it stops all who come after it, or they would take what it waits for."""
        waiting, admitted = self._roster.waiting, 0
        if not waiting.any_of(ranks):
            return 0, False
        skipped: list[Sequence] = []
        while draft.budget >= 1 and self._has_row(ranks):
            sequence = waiting.next(ranks, [*skipped, *draft.hopeless])
            if sequence is None:
                return admitted, False
            # A preempted sequence whose last token is still on the device cannot be set up before the host has it.
            if sequence.in_flight:
                return admitted, True
            cached = self._roster.sharing.cached_pages(sequence)
            if self._restores is not None and self._restores.must_wait(sequence, cached):
                skipped.append(sequence)
            elif is_hopeless(sequence, len(cached) * sequence.page_size, self._cost, now):
                draft.hopeless.append(sequence)
            elif self._roster.sharing.must_wait(sequence, len(cached)):
                skipped.append(sequence)
            else:
                pages = self._make_room(sequence, cached)
                if pages is None:
                    return admitted, True
                self._admit(sequence, pages, len(cached), draft, now)
                admitted += 1
        return admitted, waiting.any_of(ranks)

    def _has_row(self, ranks: Collection[int]) -> bool:
        return bool(self._roster.free_rows or (ranks is FOREGROUND_RANKS and self._roster.background))

    def _make_room(self, sequence: Sequence, cached: list[int]) -> list[int] | None:
        """A free row, and pages for all tokens known, at once, so that a prompt once admitted never waits for pages.
        A sequence of the foreground takes them from the background where that is enough. None where they would leave
        less than a page for each running sequence that it may not take pages from: it would soon be preempted again.
        """
        roster, pool = self._roster, self._roster.pool
        count = pool.pages_for(len(sequence.tokens)) - len(cached)
        yields = sequence.rank < BACKGROUND
        headroom = len(roster.foreground) if yields else roster.num_running

        def missing() -> int:
            return count + headroom + pool.num_idle(cached) - pool.num_available

        def enough() -> bool:
            # Pages that only the background shares are free once all of it has gone; those to be shared now are not.
            tables = (other.page_table for other in roster.background)
            return missing() <= 0 or missing() <= pool.num_freed(tables, cached)

        if yields and roster.background and enough():
            while roster.background and (not roster.free_rows or missing() > 0):
                roster.preempt(choose_victim(roster.background, roster.own_pages))
        if missing() > 0 or not roster.free_rows:
            return None
        pool.share(cached)
        taken = pool.take(count)
        assert taken is not None
        return cached + taken

    def _admit(self, sequence: Sequence, pages: list[int], num_cached: int, draft: Draft, now: float) -> None:
        first_time = sequence.queue_seconds is None
        draft.admissions.append(self._roster.admit(sequence, pages, num_cached, now))
        if self._restores is not None:
            self._restores.admitted(sequence, num_cached if first_time else 0)
        if first_time:
            self.queried_tokens += len(sequence.tokens)
            self.hit_tokens += sequence.computed
            weight = sequence.request.tenant_weight
            sequence.account.charged += prompt_charge(len(sequence.tokens), sequence.computed, weight)
        draft.add(sequence, min(sequence.remaining, draft.budget))

    def _take_page(self, draft: Draft, sequence: Sequence) -> bool:
        """One more page for a running sequence; False where it had to give up its own instead.

        A victim has no range in this plan: its pages may be written by others in it.
        """
        roster = self._roster
        while (pages := roster.pool.take(1)) is None:
            planned = {id(other) for other in [*draft.decoding, *draft.prefilling]}
            running = [*roster.foreground, *roster.background]
            candidates = [s for s in running if id(s) not in planned and s.rank >= sequence.rank]
            victim = choose_victim([s for s in candidates if s is not roster.first] or candidates, roster.own_pages)
            roster.preempt(victim)
            if victim is sequence:
                return False
        sequence.page_table = (*sequence.page_table, *pages)
        return True

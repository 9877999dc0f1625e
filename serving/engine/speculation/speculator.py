"""Which sequences of a step go on with guesses, and with how many. The rule is `policies/speculation.py`.

Guesses follow tokens that the host knows, so that a step with guesses is alone in flight: the plan after it waits until
it is committed. A plan without guesses does not wait, and is made while the one before it runs; where guesses would
pay, that is put off by one commit.
"""

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace

from serving.engine.block_pool import BlockPool
from serving.engine.draft import Draft
from serving.engine.limits import ExecutorLimits
from serving.engine.plan import Range, StepPlan
from serving.engine.policies.loss_budget import affordable_texts
from serving.engine.policies.speculation import choose_depths
from serving.engine.sequence import Sequence
from serving.engine.speculation.account import Account
from serving.engine.speculation.guessing import Guessing, Lookup
from serving.engine.speculation.pace import Pace
from serving.engine.speculation.prompt_lookup import PromptLookup
from serving.engine.step_cost import StepCost
from serving.settings.speculation import SpeculationConfig, SpeculationKind

NOT_MADE = -1  # stands for a guess that the device will make
REST = 3  # plans after one in which no guesses paid: what speaks against them changes slowly, and asking takes its time


class Speculator:
    """Guesses at most `most` tokens of a sequence, in steps of at most `most_tokens`. `buckets` are the step sizes that
    are compiled. `lookup` makes what looks for a new stream's guesses; None: a draft model makes them on the device,
    and reads at most `buckets[-1]` tokens of its sequences in a step; with `head` an EAGLE-3 head in its place.
    `adapts` False: whatever is found is guessed, however seldom it is right."""

    def __init__(
        self,
        *,
        most: int,
        most_tokens: int,
        buckets: tuple[int, ...],
        lookup: Callable[[Sequence], Lookup] | None,
        adapts: bool = True,
        head: bool = False,
    ) -> None:
        self.kind: SpeculationKind = "ngram" if lookup is not None else "eagle3" if head else "draft"
        self.guessed = 0
        self.accepted = 0
        self._most = most
        self._most_tokens = most_tokens
        self._lookup = lookup
        self._adapts = adapts
        self._most_read = buckets[-1]
        self._ahead = int(head)  # a head's entry at a position is made from the token after it
        self._pace = Pace(buckets)
        self._account = Account(self._pace.plain_seconds)
        self._resting = 0  # plans more in which nothing is asked
        self._put_off = False  # the plan in flight was waited for, in the hope of guesses
        self.cost: StepCost | None = None  # of the model's own steps: a draft model reads no slower

    def would_guess(self, running: Several[Sequence]) -> bool:
        """Whether the plan after what is in flight should have guesses, as far as is known without the tokens that are
        still on the device."""
        if self._resting:
            self._resting -= 1
            return False
        if any(sequence.remaining > 1 for sequence in running):
            return False
        found = [self._find(sequence) for sequence in running]
        self._put_off = any(self._depths(running, found, self._most_tokens))
        self._resting = REST if self._adapts and any(found) and not self._put_off else 0
        return self._put_off

    @property
    def _steady(self) -> int:
        """Tokens that what guesses on the device reads of a stream from step to step: a draft model what was drawn and
        the last guess, a head all that was accepted, from the states that are there by now."""
        return 1 + self._most if self._ahead else 2

    def extend(self, draft: Draft, pool: BlockPool) -> None:
        """Gives guesses to sequences of a plan in which all decode, and whose tokens are all known."""
        if draft.chunks or draft.admissions or not all(planned.token_ids for planned in draft.decodes):
            return
        found = [self._find(sequence) for sequence in draft.decoding]
        most_tokens = min(self._most_tokens, len(found) + draft.budget)
        room = self._most_read
        for index, depth in enumerate(self._depths(draft.decoding, found, most_tokens)):
            depth = min(depth, _cover(draft.decoding[index], depth, pool))
            if depth and self._lookup is not None:
                draft.guess(index, depth, found[index][:depth])
            elif depth and room:
                room -= self._have_drafted(draft, index, depth, room)
        draft.move_guesses()

    def _have_drafted(self, draft: Draft, index: int, depth: int, room: int) -> int:
        """Has the draft model guess after what it reads of a sequence, at most `room` tokens; how many it reads. It
        guesses once it has read all."""
        sequence, planned = draft.decoding[index], draft.decodes[index]
        guessing = sequence.guessing
        assert guessing is not None
        start, known = guessing.read, len(sequence.tokens) - self._ahead
        end = min(known, start + room)
        guesses = depth if end == known else 0
        if guesses:
            draft.guess(index, guesses, ())
        guessing.read = end
        draft.drafting.append(
            replace(
                planned,
                start=start,
                length=end - start,
                token_ids=tuple(sequence.tokens[start + self._ahead : end + self._ahead]),
                pages=sequence.page_table,
                samples=guesses > 0,
                guesses=guesses,
                prompt_logprobs_from=None,
            )
        )
        return end - start

    def issue(self, plan: StepPlan, owners: list[Sequence], now: float) -> None:
        """A plan is on its way."""
        guesses = plan.guesses
        put_off, self._put_off = self._put_off, False
        if not guesses and not plan.drafting and (plan.num_decode < len(plan.ranges) or plan.admissions):
            self._pace.interrupt()
            self._account.interrupt(now)
            return
        if put_off:
            self._account.put_off()
        missed = sum(max(r.length - self._steady, 0) for r in plan.drafting)
        self._account.issue(now, len(plan.ranges), rounds=plan.rounds, guesses=guesses > 0, read=missed)
        if missed:
            self._pace.interrupt()
            return
        made = guesses if plan.drafting else 0
        waited = put_off and not guesses
        self._pace.issue(now, plan.num_tokens, rounds=plan.rounds, made=made if guesses else None, waited=waited)
        for sequence, planned in zip(owners, plan.ranges, strict=True):
            if sequence.guessing is not None and not planned.guesses:
                sequence.guessing.pass_over()

    def rest(self) -> None:
        """There is nothing to plan."""
        self._pace.interrupt()
        self._account.interrupt()

    def observe(self, sequence: Sequence, planned: Range, accepted: int) -> None:
        """Of the guesses of a range, so many were right."""
        self.guessed += planned.guesses
        self.accepted += accepted
        self._account.accept(accepted)
        guessing = sequence.guessing
        assert guessing is not None
        guessing.observe(planned.guesses, accepted)
        if guessing.lookup is None and not self._ahead:  # of its guesses it has computed all but the last
            guessing.read = planned.start + planned.length - planned.guesses + min(accepted, planned.guesses - 1)

    def _find(self, sequence: Sequence) -> tuple[int, ...]:
        """What may come next. The stream's last token is drawn and never computed, so that none is guessed there."""
        if sequence.guessing is None:
            sequence.guessing = Guessing(None if self._lookup is None else self._lookup(sequence))
        most = min(self._most, sequence.num_positions - sequence.computed)
        if sequence.guessing.lookup is None:
            return (NOT_MADE,) * most
        return sequence.guessing.lookup.guess(sequence.tokens, most)

    def _is_full(self, count: int, most_tokens: int) -> bool:
        """Whether a draft model would read the texts of so many streams for less than the whole depth of each: it would
        seldom pay, and finding that out takes longer than it could gain."""
        return self._adapts and self._lookup is None and count * (1 + self._most) > most_tokens

    def _depths(self, sequences: Several[Sequence], found: list[tuple[int, ...]], most_tokens: int) -> list[int]:
        count = len(sequences)
        if not any(found) or count >= most_tokens or self._is_full(count, most_tokens):
            return [0] * count
        if not self._adapts:
            room = (most_tokens - count) // sum(1 for guesses in found if guesses)
            return [min(len(guesses), room) for guesses in found]
        plain = self._pace.plain_seconds(count)
        if plain is None:
            return [0] * count
        return choose_depths(
            [sequence.guessing.rate if sequence.guessing else 0.0 for sequence in sequences],
            [len(guesses) if may else 0 for guesses, may in zip(found, self._readable(sequences), strict=True)],
            most_tokens=most_tokens,
            plain_seconds=plain,
            seconds=lambda tokens, depth: self._pace.guessed_seconds(tokens, 0 if self._lookup else depth),
            balance=self._account.balance,
        )

    def _readable(self, sequences: Several[Sequence]) -> list[bool]:
        """Whose texts a draft model may read, as far as it has not."""
        if self._lookup is not None:
            return [True] * len(sequences)
        unread = [
            max(len(one.tokens) - self._ahead - (one.guessing.read if one.guessing else 0) - self._steady, 0)
            for one in sequences
        ]
        otherwise = 0.0 if self.cost is None else self.cost.least_seconds(1)
        return affordable_texts(self._account.balance, unread, self._account.seconds_to_read(otherwise))


def speculator_for(config: SpeculationConfig, limits: ExecutorLimits) -> Speculator | None:
    """For an executor with these limits; None where nothing is to be guessed."""
    buckets = limits.guessed_buckets
    if not buckets:
        return None

    def lookup(_: Sequence) -> Lookup:
        return PromptLookup(config.ngram_shortest, config.ngram_longest)

    return Speculator(
        most=limits.guesses,
        most_tokens=buckets[-1],
        buckets=limits.token_buckets,
        lookup=lookup if config.kind == "ngram" else None,
        adapts=config.adaptive,
        head=config.kind == "eagle3",
    )


def _cover(sequence: Sequence, count: int, pool: BlockPool) -> int:
    """How many of `count` positions more have pages, or get one: nobody is preempted for guesses."""
    missing = pool.pages_for(sequence.computed + count) - len(sequence.page_table)
    if missing > 0:
        taken = pool.take(min(missing, pool.num_available))
        assert taken is not None
        sequence.page_table = (*sequence.page_table, *taken)
    return min(count, len(sequence.page_table) * pool.page_size - sequence.computed)

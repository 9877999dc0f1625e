"""The plan being made, and who its ranges belong to."""

from dataclasses import dataclass, field, replace

from serving.engine.plan import Admission, Range, StepPlan
from serving.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Issued:
    """A plan in flight. `owners[i]` is the sequence of `plan.ranges[i]`."""

    plan: StepPlan
    owners: list[Sequence]
    num_tokens: int


@dataclass(slots=True)
class Draft:
    """Collects ranges in any order and issues them with the decodes first."""

    budget: int  # tokens left, of `allowed`
    allowed: int
    admissions: list[Admission] = field(default_factory=list)
    decodes: list[Range] = field(default_factory=list)  # length 1, sampling
    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[Range] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)
    constrained: bool = False  # a range samples under a grammar
    hopeless: list[Sequence] = field(default_factory=list)  # found waiting, with a deadline that cannot be met
    rounds: int = 1  # see `StepPlan`
    drafting: list[Range] = field(default_factory=list)  # see `StepPlan`

    def limit(self, num_tokens: int) -> None:
        """Lets the whole step have at most so many tokens; `budget` is below 0 where it has more already."""
        excess = max(self.allowed - num_tokens, 0)
        self.allowed -= excess
        self.budget -= excess

    def add(self, sequence: Sequence, length: int) -> None:
        """The next `length` positions of `sequence`, which must not have a range in this plan yet."""
        planned = sequence.next_range(length)
        self.budget -= length
        if sequence.constraint is not None and planned.samples:
            self.constrained = True
        if length == 1 and planned.samples:
            self.decodes.append(planned)
            self.decoding.append(sequence)
        else:
            self.chunks.append(planned)
            self.prefilling.append(sequence)

    def repeat(self, rounds: int) -> None:
        """Has the device draw so many tokens of each sequence. All of them decode, and have the pages for it."""
        self.rounds = rounds
        for i, sequence in enumerate(self.decoding):
            if self.decodes[i].pages is not sequence.page_table:
                self.decodes[i] = replace(self.decodes[i], pages=sequence.page_table)
            sequence.repeat(rounds)

    def guess(self, index: int, count: int, token_ids: tuple[int, ...]) -> None:
        """Lets the range of `decoding[index]` go on with so many guesses, for which it has the pages: `token_ids`, or
        those that the device will make. The range stays where it is until `move_guesses`."""
        sequence, planned = self.decoding[index], self.decodes[index]
        sequence.guess(count)
        self.budget -= count
        self.decodes[index] = replace(
            planned,
            length=planned.length + count,
            token_ids=(*planned.token_ids, *token_ids),
            pages=sequence.page_table,
            guesses=count,
        )

    def move_guesses(self) -> None:
        """Puts the ranges that have guesses behind those of one token."""
        for planned, sequence in zip(self.decodes, self.decoding, strict=True):
            if planned.guesses:
                self.chunks.append(planned)
                self.prefilling.append(sequence)
        self.decoding = [s for planned, s in zip(self.decodes, self.decoding, strict=True) if not planned.guesses]
        self.decodes = [planned for planned in self.decodes if not planned.guesses]

    def issue(self, step: int) -> Issued:
        owners, ranges = self.decoding + self.prefilling, (*self.decodes, *self.chunks)
        constrained: tuple[int, ...] = ()
        if self.constrained:
            constrained = tuple(
                i for i, owner in enumerate(owners) if owner.constraint is not None and ranges[i].samples
            )
        plan = StepPlan(
            step=step,
            admissions=tuple(self.admissions),
            ranges=ranges,
            num_decode=len(self.decodes),
            constrained=constrained,
            rounds=self.rounds,
            drafting=tuple(self.drafting),
        )
        return Issued(plan, owners, self.allowed - self.budget)

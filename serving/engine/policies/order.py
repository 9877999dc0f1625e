"""Who goes first: one total order over live sequences, for rows, for prefill budget and for pages.

By rank, then by arrival. Rank is the class, but for the elders (see `aging.py`), who go before all. Ranks from
`BACKGROUND` on are planned last, with what the others leave of a step: such a sequence may be left out of the step,
or lose its row and its pages to one of the others that waits.
"""

from serving.engine.request import Priority
from serving.engine.sequence import Sequence

ELDER = 0
RANKS = {Priority.INTERACTIVE: 1, Priority.STANDARD: 2, Priority.BATCH: 3}
BACKGROUND = RANKS[Priority.BATCH]
FOREGROUND_RANKS = tuple(range(BACKGROUND))
BACKGROUND_RANKS = (BACKGROUND,)


def precedence(sequence: Sequence) -> tuple[int, int]:
    """Lower goes first. Unique, so that every choice is deterministic."""
    return sequence.rank, sequence.arrival_number

"""Who gives up its pages when there are none left: whoever is cheapest."""

from collections.abc import Callable, Iterable

from serving.engine.sequence import Sequence


def choose_victim(candidates: Iterable[Sequence], own_pages: Callable[[Sequence], int]) -> Sequence:
    """Of the lowest class, the one with the fewest tokens to compute again; of equals, the newest.

    `own_pages` counts the pages that a sequence shares with nobody, which are those that it would free; one that would
    free none is the last resort. The caller offers neither a sequence that is part of the plan being made, nor, beside
    others, the first in precedence: that one always advances, so no two sequences can evict each other for ever.
    """

    def cost(sequence: Sequence) -> tuple[int, bool, int, int]:
        own = own_pages(sequence)
        return -sequence.rank, own == 0, tokens_lost(sequence, own), -sequence.arrival_number

    return min(candidates, key=cost)


def tokens_lost(sequence: Sequence, own_pages: int) -> int:
    """Positions that a preempted sequence has to compute again, but for those that others keep in the cache."""
    kept = (len(sequence.page_table) - own_pages) * sequence.page_size
    return max(sequence.computed - kept, 0)

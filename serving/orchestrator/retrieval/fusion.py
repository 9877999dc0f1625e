"""Rankings of different kinds made one, by reciprocal rank fusion.

Cormack, Clarke and Buettcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods",
2009: a passage's score is the sum of weight / (60 + rank) over the rankings that have it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

RANK_OFFSET = 60  # the paper's k


def fused(rankings: Iterable[tuple[float, Sequence[int]]]) -> list[int]:
    """`rankings` are (weight, ids, best first); the ids of all of them, best first. Equal scores go by id."""
    scores: defaultdict[int, float] = defaultdict(float)
    for weight, ids in rankings:
        for rank, each in enumerate(ids, start=1):
            scores[each] += weight / (RANK_OFFSET + rank)
    return sorted((each for each in scores if scores[each] > 0), key=lambda each: (-scores[each], each))

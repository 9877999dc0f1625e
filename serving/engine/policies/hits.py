"""Which of a tenant's waiting requests goes first: one whose prompt is in the cache, before it is evicted.

Only within a window at the head of one tenant's queue, and each request is passed at most MAX_PASSED times, so the
order between tenants and classes is untouched, and nobody waits for more than MAX_PASSED admissions beyond its turn.
"""

from collections.abc import Callable
from collections.abc import Sequence as Row

from serving.engine.sequence import Sequence

WINDOW = 8
MAX_PASSED = 16


def preferred(window: Row[Sequence], cached_pages: Callable[[Sequence], int]) -> Sequence:
    """The first of `window` with at least half of its pages cached; the first of all where there is none, or where it
    has been passed often enough."""
    first = window[0]
    if len(window) == 1 or first.passed >= MAX_PASSED:
        return first
    hits = (s for s in window if s.num_shareable and 2 * cached_pages(s) >= s.num_shareable)
    return next(hits, first)

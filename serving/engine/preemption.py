"""Who gives up its pages when there are none left."""

from collections.abc import Iterable

from serving.engine.selection import precedence
from serving.engine.sequence import Sequence


def choose_victim(running: Iterable[Sequence]) -> Sequence:
    """The last in precedence. The first one is then a victim only when it runs alone, and alone it has every page:
    so it always advances, and no two sequences can evict each other forever."""
    return max(running, key=precedence)

"""What each tier of the prefix cache holds and has done."""

from collections import deque
from dataclasses import dataclass, field

_KEPT = 8  # measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """A snapshot of one tier below the device. Counters grow from the engine process's start."""

    tier: str
    pages: int
    room: int  # pages
    bytes: int  # of those pages
    hit_tokens: int = 0  # counter, prompt tokens that came from it
    pages_in: int = 0  # counter, copied to it from the tier above
    pages_out: int = 0  # counter, copied from it to the tier above
    seconds_in: float = 0.0  # counter, of its threads
    seconds_out: float = 0.0
    lost: int = 0  # counter, pages that were not kept: copies in flight left no room, or the disk refused them
    skipped: int = 0  # counter, pages that were given up without a copy while no page was seen to come back
    damaged: int = 0  # counter, files that did not hold what they should, and are gone
    foreign: int = 0  # files of another model or layout, found at the start and removed


@dataclass(slots=True)
class TierCounters:
    hit_tokens: int = 0
    pages_in: int = 0
    pages_out: int = 0
    seconds_in: float = 0.0
    seconds_out: float = 0.0
    lost: int = 0
    skipped: int = 0
    damaged: int = 0
    foreign: int = 0
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def least_seconds(self) -> float:
        """The least that a page has lately taken on its way out; 0 where none was seen."""
        return min(self._rates, default=0.0)

    def came(self, pages: int, seconds: float) -> None:
        self.pages_in += pages
        self.seconds_in += seconds

    def went(self, pages: int, seconds: float) -> None:
        self.pages_out += pages
        self.seconds_out += seconds
        if pages:
            self._rates.append(seconds / pages)

    def stats(self, tier: str, pages: int, room: int, page_bytes: int) -> TierStats:
        return TierStats(
            tier=str(tier),
            pages=pages,
            room=room,
            bytes=pages * page_bytes,
            hit_tokens=self.hit_tokens,
            pages_in=self.pages_in,
            pages_out=self.pages_out,
            seconds_in=self.seconds_in,
            seconds_out=self.seconds_out,
            lost=self.lost,
            skipped=self.skipped,
            damaged=self.damaged,
            foreign=self.foreign,
        )

"""Tells a step that hangs from one that runs.

A device call that never returns can be neither interrupted nor joined. What can be done is to say so, and to end the
process.
"""

import threading
import time
from collections.abc import Callable


class StepWatchdog:
    """One thread begins and ends steps, others ask. `now` is the clock, in seconds."""

    def __init__(
        self, limit_seconds: float, *, check_seconds: float = 1.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_seconds = limit_seconds
        self._check_seconds = check_seconds
        self._now = now
        self._began: float | None = None

    def begin(self) -> None:
        self._began = self._now()

    def end(self) -> None:
        self._began = None

    @property
    def overdue(self) -> bool:
        """Whether the step under way has taken longer than the limit."""
        began = self._began
        return began is not None and self._now() - began > self.limit_seconds

    def watch(self, ended: threading.Event) -> bool:
        """Blocks until a step is overdue, and returns True; or until `ended` is set, and returns False."""
        while not ended.wait(self._check_seconds):
            if self.overdue:
                return True
        return False

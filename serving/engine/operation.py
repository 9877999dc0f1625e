"""What an operator may ask of an engine that runs: one message for each operation, one form of answer for all.

They reach every body of the Engine protocol by its one method `operate`, and cross to the engine process as requests do
(hence structs with tags: a union of dataclasses could not be told apart on the wire). What each does is in
`operations.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class EngineState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"  # no new steps; streams wait where they are
    ASLEEP = "asleep"  # paused, and its memory given back


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No step begins from now on; the one on the device is finished first. Streams that are open wait, and new ones
    are queued. Does nothing where the engine is paused."""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Steps begin again. Does nothing where the engine runs."""


Operation = Pause | Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationReport:
    """What an operation has left behind. None: it says nothing of this."""

    state: EngineState
    seconds: float = 0.0  # that it took
    open_streams: int | None = None  # that wait, or go on

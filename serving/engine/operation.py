"""What an operator may ask of an engine that runs: one message for each operation, one form of answer for all.

They reach every body of the Engine protocol by its one method `operate`, and cross to the engine process as requests do
(hence structs with tags: a union of dataclasses could not be told apart on the wire). What each does is in
`operations.py`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from serving.engine.adapter_lease import AdapterState
from serving.engine.adapter_messages import ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from serving.engine.pin_messages import ListPins, PinPrefix, UnpinPrefix
from serving.engine.prefix_pins import PinnedPrefix


class EngineState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"  # no new steps; streams wait where they are
    ASLEEP = "asleep"  # paused, and its memory given back


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No step begins from now on; the one on the device is finished first. Streams that are open wait, and new ones
    are queued. Does nothing where the engine is paused."""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Steps begin again. Does nothing where the engine runs."""


class Sleep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pauses, and gives the memory of pages and weights back. Open streams lose their pages and wait. Does nothing
    where the engine sleeps."""

    weights: Literal["host", "none"] = "host"  # keep a copy in host memory, or read them from the checkpoint again


class Wake(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Takes the memory back, and runs."""


class LoadWeights(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Other weights for the same programs. Also of an engine that sleeps, which then sleeps on."""

    checkpoint: str  # a folder inside of the one that the deployment names for this


class StartTrace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Records every step from now on. Streams that run are computed again, and cached pages are forgotten."""

    name: str  # of the file, inside of the folder that the deployment names for this


class StopTrace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ends the recording."""


Operation = (
    Pause
    | Resume
    | Sleep
    | Wake
    | LoadWeights
    | StartTrace
    | StopTrace
    | PinPrefix
    | UnpinPrefix
    | ListPins
    | LoadAdapter
    | UnloadAdapter
    | PinAdapter
    | ListAdapters
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationReport:
    """What an operation has left behind. None: it says nothing of this."""

    state: EngineState
    seconds: float = 0.0  # that it took
    open_streams: int | None = None  # that wait, or go on
    weights: str | None = None  # the version of those that are served
    freed_bytes: int | None = None  # of the devices
    trace_steps: int | None = None
    trace_bytes: int | None = None
    trace_ended: str | None = None  # why, where the trace ended before it was stopped
    adapters: tuple[AdapterState, ...] | None = None  # by name
    pins: tuple[PinnedPrefix, ...] | None = None  # of the one who asked

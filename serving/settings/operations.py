"""What an operator may do to a server that runs (docs/operations.md, docs/step_traces.md)."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsConfig:
    checkpoints: Path | None = None  # the folder of those that may be loaded while serving; None: none may
    wake_on_request: bool = False  # a request wakes an engine that sleeps; else it is refused
    traces: Path | None = None  # the folder for step traces; None: none can be recorded
    trace_bytes: int = 256 << 20  # of one step trace, which ends there

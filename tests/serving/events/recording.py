"""Logs to record with, and outboxes to look into."""

from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from serving.events.event_log import WrittenEventLog
from serving.events.event_metrics import EventMetrics
from serving.events.event_types import ServerDrained
from serving.events.outbox import Entry, Outbox
from serving.settings.events import EventsConfig

MOST = 100_000


def log_of(path: Path, registry: CollectorRegistry | None = None, **config: Any) -> WrittenEventLog:
    settings = EventsConfig(outbox=path, **config)
    return WrittenEventLog(settings, Outbox(path), "weft/demo", EventMetrics(registry or CollectorRegistry()))


def events_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(entry.event) for entry in Outbox(path).read(0, MOST)]


def drained(number: int = 0) -> ServerDrained:
    return ServerDrained(open_streams=number, left_streams=0, seconds=0.5)


def entry(number: int, *, time: float = 1000.0, kind: str = "weft.tool.ended.v1", size: int = 2) -> Entry:
    return Entry(id=f"run-{number}", time=time, type=kind, event=b"%d%b" % (number, b" " * (size - 1)))

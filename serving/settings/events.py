"""What a deployment says of its event log (docs/events.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from serving.errors import ConfigError

Sink = Literal["sqlite", "redis"]
Names = Literal["hashed", "plain"]
Group = Literal["request", "tool", "moderation", "engine", "server", "canary", "feedback"]

GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConfig:
    outbox: Path  # an SQLite file, of all API processes of one machine
    sink: Sink = "sqlite"  # where consumers read: the outbox itself, or a stream in Redis to which it is shipped
    redis: str | None = None  # redis://, rediss:// or unix://; a password comes from WEFT_REDIS_PASSWORD
    stream: str = "weft:events"  # its key
    stream_length: int = 1_000_000  # events that the stream keeps, about
    record: tuple[Group, ...] = GROUPS
    text: bool = False  # prompts, answers, and what tools are given and give
    users: Names = "hashed"  # keys and end users
    sample: float = 1.0  # share of the requests
    retain_days: float = 7.0  # in the outbox
    max_bytes: int = 1 << 30  # of the outbox; the oldest go first


def check_events(config: EventsConfig, where: str) -> None:
    """Raises ConfigError."""
    for name, message in _faults(config):
        raise ConfigError(f"{where}: events.{name} {message}", param=f"events.{name}")


def _faults(config: EventsConfig) -> Iterator[tuple[str, str]]:
    if (config.sink == "redis") != (config.redis is not None):
        yield "redis", 'is the address of the stream, for sink = "redis" and no other'
    if config.redis is not None and not config.redis.startswith(("redis://", "rediss://", "unix://")):
        yield "redis", "must begin with redis://, rediss:// or unix://"
    if not config.stream:
        yield "stream", "must not be empty"
    if not config.record:
        yield "record", f"must name some of {', '.join(GROUPS)}; to record nothing, leave the table out"
    bounds: dict[str, tuple[float, float]] = {
        "stream_length": (1000, 1 << 40),
        "sample": (0, 1),
        "retain_days": (0.001, 3650),
        "max_bytes": (1 << 20, 1 << 44),
    }
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not low <= value <= high:
            yield name, f"must be in {low:g} .. {high:g}, not {value}"

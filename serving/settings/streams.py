"""What a deployment says of streams that outlive their connections (docs/durability.md)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.errors import ConfigError

StreamLog = Literal["memory", "sqlite", "redis"]
LogFailure = Literal["continue", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    log: StreamLog = "memory"  # with sqlite and redis they outlive the API process too
    path: Path | None = None  # the SQLite file
    redis: str | None = None  # redis://, rediss:// or unix://; a password comes from WEFT_REDIS_PASSWORD
    retain_seconds: float = 600.0  # after a stream's end
    max_bytes: int = 256 << 20  # of all streams together
    grace_seconds: float = 120.0  # how long a stream goes on without a reader
    on_log_failure: LogFailure = "continue"  # new streams begin without the log, or are refused


def check_streams(streams: StreamsConfig, where: str) -> None:
    """The log has its place, and nothing else has one. Raises ConfigError."""
    for log, name in (("sqlite", "path"), ("redis", "redis")):
        value = getattr(streams, name)
        if (streams.log == log) != (value is not None):
            raise ConfigError(f'{where}: streams.{name} is for streams.log = "{log}", which needs it', param=name)
    if streams.redis is not None and not streams.redis.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(f"{where}: streams.redis must begin with redis://, rediss:// or unix://", param="redis")

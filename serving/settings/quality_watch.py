"""What a deployment says of the prompts that its answers are scored on while it serves (docs/quality_watch.md)."""

from dataclasses import dataclass
from pathlib import Path

from serving.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityWatchConfig:
    canaries: Path  # a TOML file of prompts and what their answers should be
    seconds: float = 60.0  # between two prompts


def check_quality_watch(config: QualityWatchConfig, where: str) -> None:
    """Raises ConfigError."""
    if not 1 <= config.seconds <= 86400:
        raise ConfigError(
            f"{where}: quality_watch.seconds must be in 1 .. 86400, not {config.seconds}", param="quality_watch.seconds"
        )

"""What a deployment says of the memory of users (docs/memory.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from serving.errors import ConfigError

Strategy = Literal["window", "summary", "selective", "hierarchical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    path: Path  # a SQLite file
    strategy: Strategy = "hierarchical"  # of tenants that have none of their own
    tenants: Mapping[str, Strategy] = field(default_factory=dict)
    on: bool = True  # for users who have not said
    notes: int = 5  # earlier exchanges that a prompt may have again, at most
    block: int = 8  # exchanges that one summary takes
    summary_tokens: int = 192  # of one summary
    most_entries: int = 2000  # of one user; the oldest go first


def check_memory(config: MemoryConfig, where: str) -> None:
    """Raises ConfigError."""
    bounds = {"notes": (0, 100), "block": (2, 64), "summary_tokens": (16, 4096), "most_entries": (10, 100_000)}
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise ConfigError(f"{where}: memory.{name} must be in {low} .. {high}, not {value}", param=f"memory.{name}")

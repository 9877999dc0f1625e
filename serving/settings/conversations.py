"""What a deployment says of conversations: where they are kept, and for how long (docs/conversations.md)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.errors import ConfigError
from serving.settings.postgres import SCHEMES

Store = Literal["sqlite", "postgres", "redis"]
_SCHEMES = {"postgres": SCHEMES, "redis": ("redis://", "rediss://", "unix://")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationsConfig:
    store: Store = "sqlite"
    path: Path | None = None  # of the SQLite file; None: in memory, which ends with the API process
    url: str | None = None  # of Postgres or Redis; a password comes from WEFT_POSTGRES_PASSWORD or WEFT_REDIS_PASSWORD
    retain_days: float = 30.0  # after their last use; 0: until they are deleted
    max_tenant_conversations: int = 100_000  # and chains of responses
    max_items: int = 10_000  # of one of them
    max_tenant_bytes: int = 1 << 30  # of all of them together

    @property
    def retain_seconds(self) -> float | None:
        return self.retain_days * 86400 if self.retain_days else None


def check_conversations(config: ConversationsConfig, where: str) -> None:
    """The store has its place, and nothing else has one. Raises ConfigError."""
    for name in ("max_tenant_conversations", "max_items", "max_tenant_bytes"):
        value = getattr(config, name)
        if value < 1:
            raise ConfigError(f"{where}: conversations.{name} must be at least 1, not {value}", param=name)
    if (config.store == "sqlite") != (config.url is None):
        raise ConfigError(
            f'{where}: conversations.url is for conversations.store = "postgres" or "redis", which need it', param="url"
        )
    if config.path is not None and config.store != "sqlite":
        raise ConfigError(f'{where}: conversations.path is for conversations.store = "sqlite"', param="path")
    if config.url is not None and not config.url.startswith(_SCHEMES[config.store]):
        raise ConfigError(
            f"{where}: conversations.url must begin with {' or '.join(_SCHEMES[config.store])}", param="url"
        )

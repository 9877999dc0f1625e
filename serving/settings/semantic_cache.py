"""What a deployment says of answers that serve again (docs/semantic_cache.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.errors import ConfigError

CacheMode = Literal["off", "shadow", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticCacheConfig:
    mode: CacheMode = (
        "off"  # of tenants that are not named; "shadow" measures what "serve" would do, and serves nothing
    )
    tenants: Mapping[str, CacheMode] = field(default_factory=dict)
    threshold: float = 0.95  # cosine of two questions from which on the answer of one is served for the other
    answer_threshold: float = 0.8  # cosine of two answers, below which a shadow's hit was a false one
    max_temperature: float | None = None  # of requests that are looked up; None: any
    lifetime_seconds: float = 3600.0  # of an answer
    max_entries: int = 4096
    max_bytes: int = 64 << 20  # of all entries together
    tenant_share: float | None = None  # of both that one tenant may hold; None: an equal part, see `share`
    timeout_seconds: float = 1.0  # that a question may take to be encoded; then it is answered without

    @property
    def share(self) -> float:
        """Where tenants are named and others have no cache, each has an equal part; else a quarter for anybody."""
        if self.tenant_share is not None:
            return self.tenant_share
        named = sum(mode != "off" for mode in self.tenants.values())
        return 1 / named if self.mode == "off" and named else 0.25


def check_semantic_cache(config: SemanticCacheConfig, where: str, *, has_encoder: bool) -> None:
    """Raises ConfigError."""
    for name, message in _faults(config, has_encoder):
        raise ConfigError(f"{where}: semantic_cache.{name} {message}", param=f"semantic_cache.{name}")


def _faults(config: SemanticCacheConfig, has_encoder: bool) -> Iterator[tuple[str, str]]:
    if not has_encoder:
        yield "mode", "compares questions by an encoder, and needs an [embeddings] table"
    if config.mode == "off" and all(mode == "off" for mode in config.tenants.values()):
        yield "mode", 'is "off" for everybody: name tenants in semantic_cache.tenants, or leave the table out'
    bounds: dict[str, tuple[float, float]] = {
        "threshold": (0.5, 1),
        "answer_threshold": (0, 1),
        "max_temperature": (0, 2),
        "lifetime_seconds": (1, 30 * 86400),
        "max_entries": (1, 16384),
        "max_bytes": (1 << 16, 1 << 34),
        "tenant_share": (0.001, 1),
        "timeout_seconds": (0.01, 60),
    }
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            yield name, f"must be in {low} .. {high}, not {value}"

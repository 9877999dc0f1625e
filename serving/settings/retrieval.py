"""What a deployment says of vector stores (docs/retrieval.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.errors import ConfigError
from serving.settings.postgres import SCHEMES

CACHE_BYTES = 1 << 30
MOST_TOLD = 64  # sentences: as many as are compared with a question
IndexKind = Literal["sqlite", "pgvector", "qdrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    folder: Path  # for what is known of stores, and the index of sqlite
    index: IndexKind = "sqlite"  # qdrant is refused: it is not built
    url: str | None = None  # of the Postgres of pgvector; a password comes from WEFT_POSTGRES_PASSWORD
    cache_bytes: int = CACHE_BYTES  # of vectors that the API process holds in memory, of sqlite
    max_tenant_stores: int = 100
    max_store_files: int = 10_000
    max_tenant_bytes: int = 8 << 30  # of texts and vectors, of all stores of a tenant together
    told_sentences: int = 0  # of all found, nearest to the question, that file_search tells; 0: whole passages
    concurrent_files: int = 2  # that are read and embedded at once
    parse_seconds: float = 60.0  # of computing, for the text of one file
    parse_memory_bytes: int = 2 << 30
    max_file_chars: int = 20_000_000  # of text
    max_file_pages: int = 2000


def check_retrieval(config: RetrievalConfig, where: str, *, has_files: bool, has_encoder: bool) -> None:
    """Raises ConfigError."""
    for there, key in ((has_files, "files.folder"), (has_encoder, "embeddings")):
        if not there:
            raise ConfigError(f"{where}: [retrieval] needs {key} too: it embeds what /v1/files keeps", param=key)
    if config.index == "qdrant":
        raise ConfigError(
            f'{where}: retrieval.index = "qdrant" is not supported: "sqlite" and "pgvector" are', param="index"
        )
    if (config.index == "pgvector") != (config.url is not None):
        raise ConfigError(f'{where}: retrieval.url is for retrieval.index = "pgvector", which needs it', param="url")
    if config.url is not None and not config.url.startswith(SCHEMES):
        raise ConfigError(f"{where}: retrieval.url must begin with {' or '.join(SCHEMES)}", param="url")
    if config.url is not None and config.cache_bytes != CACHE_BYTES:
        raise ConfigError(f'{where}: retrieval.cache_bytes is for retrieval.index = "sqlite"', param="cache_bytes")
    for name, (is_right, right) in _BOUNDS.items():
        value = getattr(config, name)
        if not is_right(value):
            raise ConfigError(f"{where}: retrieval.{name} must be {right}, not {value}", param=name)


def _at_least(least: float) -> tuple[Callable[[float], bool], str]:
    return lambda value: value >= least, f"at least {least:g}"


_BOUNDS: dict[str, tuple[Callable[[float], bool], str]] = {
    "cache_bytes": _at_least(0),
    "max_tenant_stores": _at_least(1),
    "max_store_files": _at_least(1),
    "max_tenant_bytes": _at_least(1),
    "told_sentences": (lambda value: 0 <= value <= MOST_TOLD, f"in 0 .. {MOST_TOLD}"),
    "concurrent_files": _at_least(1),
    "parse_seconds": (lambda value: 1 <= value <= 3600, "in 1 .. 3600"),
    "parse_memory_bytes": _at_least(256 << 20),
    "max_file_chars": _at_least(1),
    "max_file_pages": _at_least(1),
}

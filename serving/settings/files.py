"""What clients may leave here, and the batches that run over it (docs/batches.md)."""

from dataclasses import dataclass, fields
from pathlib import Path

from serving.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    folder: Path | None = None  # None: no /v1/files, /v1/batches and /v1/containers
    max_file_bytes: int = 64 << 20
    max_tenant_bytes: int = 1 << 30
    max_tenant_files: int = 1000
    max_batch_requests: int = 50_000  # lines of one batch
    max_tenant_batches: int = 16  # that have not ended
    concurrent_requests: int = 8  # lines that run at once, of all batches
    retain_batch_days: float = 30.0  # after a batch's end; 0: until its tenant has 1,000 newer ones

    @property
    def retain_batch_seconds(self) -> float | None:
        return self.retain_batch_days * 86400 if self.retain_batch_days else None


def check_files(config: FilesConfig, where: str) -> None:
    """Raises ConfigError for bounds of what is not there."""
    if config.folder is not None:
        return
    for spec in fields(FilesConfig):
        if getattr(config, spec.name) != spec.default:
            raise ConfigError(
                f"{where}: files.{spec.name} needs files.folder too: without one no files are kept",
                param=f"files.{spec.name}",
            )

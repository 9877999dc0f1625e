"""The table `prefix_cache`: where pages go that the device has no room for, and what may be pinned
(docs/prefix_cache.md)."""

from dataclasses import dataclass
from pathlib import Path

from serving.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheConfig:
    host_bytes: int | None = None  # of host memory for pages; None: pages that the device gives up are lost
    disk: Path | None = None  # a folder for pages, which survive a restart; it needs host_bytes. None: no disk
    disk_bytes: int = 16 << 30  # of files there
    tenant_pins: int = 8  # prefixes that a tenant may pin at once
    pin_seconds: float = 86400.0  # the longest lifetime of a pin


def check_prefix_cache(
    table: PrefixCacheConfig, *, caching: bool, data: int, pipeline: int, processes: int, where: str
) -> None:
    """`caching` is engine.prefix_caching, the others are of the mesh and the cluster. Raises ConfigError."""
    if table.disk is not None and table.host_bytes is None:
        raise ConfigError(
            f"{where}: prefix_cache.disk needs prefix_cache.host_bytes: pages pass through host memory on their way",
            param="disk",
        )
    if table.host_bytes is None:
        return
    if not caching:
        raise ConfigError(
            f"{where}: prefix_cache.host_bytes keeps pages of the prefix cache, and engine.prefix_caching is off",
            param="host_bytes",
        )
    for name, size, right in (
        ("mesh.data", data, "split the model by tensor or expert, or run an engine for each part"),
        ("mesh.pipeline", pipeline, "split the model by tensor or expert"),
        ("cluster.processes", processes, "a page lies on several hosts there"),
    ):
        if size > 1:
            raise ConfigError(
                f"{where}: prefix_cache.host_bytes is not offered where {name} is above 1, and it is {size}: {right}; "
                "or leave host_bytes out",
                param="host_bytes",
            )

"""What a deployment says of the folders that programs leave their files in (docs/containers.md)."""

from collections.abc import Iterator
from dataclasses import dataclass

_BOUNDS = {"minutes": (1, 10_080), "files": (1, 1000), "bytes": (1, 1 << 30), "tenant_containers": (1, 1 << 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainersConfig:
    """There are containers where the deployment has a `files.folder`."""

    minutes: int = 20  # without use, after which a container goes; a client may ask for fewer
    files: int = 100  # of one container
    bytes: int = 32 << 20  # of its files together; they lie in memory while a program runs
    tenant_containers: int = 1000  # of one tenant; their files count among its `files.max_tenant_bytes`


def container_faults(config: ContainersConfig, folder_bytes: int) -> Iterator[tuple[str, str]]:
    """What is wrong, by key. `folder_bytes` are what a program's working folder holds."""
    for name, (low, high) in _BOUNDS.items():
        value = getattr(config, name)
        if not low <= value <= high:
            yield f"containers.{name}", f"must be in {low} .. {high}, not {value}"
    if config.bytes > folder_bytes:
        yield (
            "containers.bytes",
            f"must be at most folder_bytes ({folder_bytes}), not {config.bytes}: programs find a container's files in "
            "their working folder",
        )

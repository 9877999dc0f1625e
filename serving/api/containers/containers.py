"""Containers of one deployment, put together."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.routing import Route

from serving.api.containers.container_purge import ContainerPurge
from serving.api.containers.container_store import ContainerStore
from serving.api.containers.file_routes import container_file_routes
from serving.api.containers.routes import container_routes
from serving.api.files.file_store import FileStore
from serving.orchestrator.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Containers:
    routes: list[Route]
    store: ContainerStore
    purge: ContainerPurge


def open_containers(files: FileStore, folder: Path, toolbox: Toolbox, now: Callable[[], float]) -> Containers:
    """`folder` is that of `files`."""
    store = ContainerStore(files, folder, toolbox.containers, now)
    routes = [*container_routes(store, files, toolbox.registry), *container_file_routes(store, files)]
    return Containers(routes, store, ContainerPurge(store))

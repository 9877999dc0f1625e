"""Files, containers and batches of one deployment, put together."""

from dataclasses import dataclass

from starlette.routing import Route

from serving.api.batches.batch_store import BatchStore, reads
from serving.api.batches.routes import batch_routes
from serving.api.batches.runner import BatchRunner
from serving.api.containers.containers import Containers, open_containers
from serving.api.files.file_store import FileStore
from serving.api.files.routes import file_routes
from serving.api.service import Service
from serving.config import FilesConfig

LINE_ENVELOPE_BYTES = 4096  # around a line's body


@dataclass(frozen=True, slots=True)
class Batches:
    routes: list[Route]
    runner: BatchRunner
    files: FileStore
    store: BatchStore
    containers: Containers

    def close(self) -> None:
        self.files.facts.close()


def open_batches(service: Service, config: FilesConfig | None, max_body_bytes: int) -> Batches | None:
    """None where the deployment has no folder for them. Raises ConfigError where that cannot be used."""
    if config is None or config.folder is None:
        return None
    files = FileStore(config, config.folder, service.now)
    store = BatchStore(files.facts, config.max_tenant_batches)
    containers = open_containers(files, config.folder, service.toolbox, service.now)
    runner = BatchRunner(service, store, files, config, max_body_bytes + LINE_ENVELOPE_BYTES, containers.purge)
    routes = [*file_routes(files, reads), *containers.routes, *batch_routes(service, store, files, runner)]
    return Batches(routes, runner, files, store, containers)

"""A container, as the programs of one turn use it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.api.containers.container import ContainerFile
from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.errors import NotFoundError
from serving.orchestrator.tools.workspace import Kept


class TurnWorkspace:
    def __init__(
        self,
        store: ContainerStore,
        owner: ContainerOwner,
        container_id: str,
        found: Sequence[ContainerFile] | None,
        *,
        lost: str | None = None,
    ) -> None:
        """`found` are the files that are there; None: the first program makes the container. `lost` had files that
        the conversation speaks of, and is there no more."""
        self._store = store
        self._owner = owner
        self._id = container_id
        self._is_there = found is not None
        self.found = list(found or ())
        self.lost = lost

    @property
    def id(self) -> str:
        return self._id

    async def open(self) -> Mapping[str, Path]:
        files = await self._store.open(self._owner, self._id, make=not self._is_there)
        self._is_there = True
        return {file.name: self._store.path(file) for file in files}

    async def keep(self, files: Mapping[str, bytes], removed: Sequence[str]) -> Kept:
        try:
            change = await self._store.keep(self._owner, self._id, files, removed)
        except NotFoundError as error:  # deleted while the program ran
            return Kept(left_out=dict.fromkeys(files, error.message))
        left_out = {name: error.message for name, error in change.left_out.items()}
        return Kept(files=[file.written for file in change.files], left_out=left_out)

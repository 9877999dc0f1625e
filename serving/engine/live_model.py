"""The model of an engine that runs, as operations see it: its memory on the devices, and how weights come there.

Knows nothing of JAX: what does stands behind the two protocols.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from serving.engine.inner_folder import inner_folder
from serving.errors import NotFoundError, RequestError, UnsupportedError

_LOOK_SECONDS = 0.05


class ModelMemory(Protocol):
    """See `device_memory.DeviceMemory`."""

    @property
    def has_weights(self) -> bool: ...

    @property
    def bytes_needed_beside(self) -> int: ...

    def give_back(self, keep: Literal["host", "none"]) -> int: ...

    def take_back(self) -> None: ...  # raises MemoryError

    def put_weights(self, stages: Sequence[Any]) -> None: ...


class Weights(Protocol):
    """See `weights_source.WeightsSource`."""

    @property
    def checkpoint(self) -> Path: ...

    @property
    def num_devices(self) -> int: ...

    def check(self, folder: Path, room: int) -> None: ...

    def read(self, folder: Path) -> list[Any]: ...


def namespace_of(name: str, version: str, updates: int = 0) -> str:
    """Of the pages of a model. Weights that came back after others have another one than before."""
    return name + (f"@{version}" if version else "") + (f"#{updates}" if updates else "")


@dataclass(slots=True, kw_only=True)
class LiveModel:
    """`folder` is the one that holds the checkpoints which may be loaded; None: none may."""

    name: str
    memory: ModelMemory
    source: Weights
    checkpoint: Path  # what is served now
    version: str  # of its weights
    folder: Path | None = None
    updates: int = 0  # of the weights since the start
    _busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def namespace(self) -> str:
        """What pages depend on beside their tokens."""
        return namespace_of(self.name, self.version, self.updates)

    @asynccontextmanager
    async def exclusively(self) -> AsyncGenerator[None, None]:
        """One operation on weights and memory at a time, whichever event loops they come from."""
        while not self._busy.acquire(blocking=False):
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            self._busy.release()

    def find(self, name: str) -> Path:
        """The checkpoint `name` in `folder`. Raises UnsupportedError, RequestError, NotFoundError."""
        if self.folder is None:
            raise UnsupportedError(
                "weights cannot be loaded while serving: operations.checkpoints names no folder that they may lie in",
                param="checkpoint",
            )
        found = inner_folder(self.folder, name)
        if found is None:
            raise RequestError(
                f"checkpoint must be the name of a folder inside of operations.checkpoints, not {name[:100]!r}",
                param="checkpoint",
                code="invalid_value",
            )
        if not os.path.isdir(found):  # as Path's own it would raise for a name that is too long
            raise NotFoundError(
                f"there is no folder {name[:100]!r} in operations.checkpoints",
                param="checkpoint",
                code="checkpoint_not_found",
            )
        return found

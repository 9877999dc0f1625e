"""Facts of a container and of its files."""

import secrets
from typing import Any

import msgspec

from serving.orchestrator.tools.workspace import WorkspaceFile

FOLDER = "/mnt/data"  # where programs find the files, beside their working folder
USER, ASSISTANT = "user", "assistant"  # who a file is of: a client, or a program


class Container(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: int  # seconds since 1970
    last_active_at: int
    minutes: int  # without use, after which it goes

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "container",
            "created_at": self.created_at,
            "status": "running",
            "expires_after": {"anchor": "last_active_at", "minutes": self.minutes},
            "last_active_at": self.last_active_at,
            "name": self.name,
        }


class ContainerFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    container_id: str
    name: str
    bytes: int
    created_at: int
    source: str
    mime_type: str
    content: str  # the name of what is on disk: another one whenever it changes

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "container.file",
            "container_id": self.container_id,
            "path": f"{FOLDER}/{self.name}",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "source": self.source,
        }

    @property
    def written(self) -> WorkspaceFile:
        return WorkspaceFile(
            file_id=self.id,
            container_id=self.container_id,
            filename=self.name,
            bytes=self.bytes,
            mime_type=self.mime_type,
        )


def new_container_id() -> str:
    return f"cntr_{secrets.token_hex(24)}"


def new_container_file_id() -> str:
    return f"cfile_{secrets.token_hex(24)}"

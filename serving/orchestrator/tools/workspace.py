"""Where the files of a turn's programs stand: what one leaves there, the next one finds, and clients read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"))
ANY_BYTES = "application/octet-stream"
HEAD_BYTES = 12  # that `media_type_of` looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFile:
    file_id: str
    container_id: str
    filename: str
    bytes: int
    mime_type: str  # what its content is: a picture that browsers show, or any bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    files: Sequence[WorkspaceFile] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # by name: why there was no room


class Workspace(Protocol):
    @property
    def id(self) -> str: ...

    async def open(self) -> Mapping[str, Path]:
        """The files that are there, by name; the workspace is made where it is not there yet. Raises NotFoundError
        where it is not there any more, QuotaError and OverloadedError."""
        ...

    async def keep(self, files: Mapping[str, bytes], removed: Sequence[str]) -> Kept:
        """Puts `files` in place of those that have their names, as far as there is room. Raises OverloadedError."""
        ...


def media_type_of(head: bytes) -> str:
    """By what it begins with, whatever its name says."""
    for begins, media_type in _IMAGES:
        if head.startswith(begins):
            return media_type
    return "image/webp" if head[:4] == b"RIFF" and head[8:HEAD_BYTES] == b"WEBP" else ANY_BYTES

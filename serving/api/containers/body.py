"""What POST under /v1/containers reads."""

from typing import Annotated, ClassVar, Literal

import msgspec

from serving.api.typed_body import Body, Refusal

ANCHORS = ("last_active_at",)
MAX_NAME_CHARS = 256

FileId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class IdleTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["last_active_at"]
    minutes: Annotated[int, msgspec.Meta(ge=1)]  # at most the deployment's


class ContainerBody(Body, kw_only=True):
    words: ClassVar = {"expires_after.anchor": ANCHORS}
    refused: ClassVar = {
        "memory_limit": Refusal("the deployment says how much memory a program has"),
        "network_policy": Refusal("programs have no network", ({"type": "disabled"},)),
        "skills": Refusal("there are none", ([],)),
    }

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    file_ids: Annotated[list[FileId], msgspec.Meta(max_length=1000)] | None = None
    expires_after: IdleTime | None = None


class ContainerFileBody(Body, kw_only=True):
    """Of a file that /v1/files has; another comes as multipart/form-data."""

    file_id: FileId

"""The tools that a turn may call here, by name."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolScope:
    """For whom a tool runs."""

    tenant: str
    user: str  # of the tenant's; empty where the request names none
    request_id: str
    deadline: float  # of the monotonic clock, in seconds: what runs longer is cancelled
    settings: Mapping[str, Any] = field(default_factory=dict)  # what the request says to this tool
    files: Mapping[str, bytes] = field(default_factory=dict)  # of the turn: given with it, and made by earlier calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    text: str  # what the model reads
    facts: dict[str, Any] = field(default_factory=dict)  # for the client, as JSON; the model does not see them
    is_error: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)  # that the call made


class Tool(Protocol):
    @property
    def name(self) -> str:
        """Of the form [a-zA-Z0-9_.-]{1,128}."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object."""
        ...

    @property
    def idempotent(self) -> bool:
        """True where a second run does no harm, so that it may be run again after a crash."""
        ...

    def run(self, arguments: dict[str, Any], scope: ToolScope) -> Awaitable[ToolResult]:
        """`arguments` follow the schema. What the model can learn from is a result with `is_error`; a WeftError is
        told to it too. Cancelled where the turn ends or its time is over."""
        ...

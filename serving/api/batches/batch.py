"""One batch, and what is shown of it: OpenAI's object."""

import secrets
from typing import Any, Literal

import msgspec

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
WINDOW_SECONDS = 24 * 3600


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a file is no batch."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    principal: bytes  # on whose account it runs
    endpoint: Endpoint
    input_file_id: str
    created_at: int  # seconds since 1970, as all of them
    expires_at: int
    output_seconds: int | None = None  # after which its files expire, from their creation; None: they do not
    metadata: dict[str, str] | None = None
    status: Status = "validating"
    total: int = 0
    faults: tuple[LineFault, ...] = ()
    output_file_id: str | None = None  # chosen before the file is written
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    completed: int = 0  # once it has ended; until then the results are counted
    failed: int = 0

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def ended_at(self) -> int | None:
        """None while it is open."""
        ends = {
            "completed": self.completed_at,
            "failed": self.failed_at,
            "expired": self.expired_at,
            "cancelled": self.cancelled_at,
        }
        return ends.get(self.status)

    def shown(self, completed: int, failed: int) -> dict[str, Any]:
        """With so many lines done."""
        hidden = ("tenant", "principal", "output_seconds", "faults", "total", "completed", "failed")
        facts = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in hidden}
        ended = self.status in ("completed", "expired", "cancelled")
        return {
            **facts,
            "object": "batch",
            "completion_window": "24h",
            "output_file_id": self.output_file_id if ended else None,
            "error_file_id": self.error_file_id if ended else None,
            "errors": {"object": "list", "data": [msgspec.to_builtins(fault) for fault in self.faults]}
            if self.faults
            else None,
            "request_counts": {"total": self.total, "completed": completed, "failed": failed},
        }


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(16)}"

"""The stages of a request on its way through the server, as spans of a trace. What is here records nothing, which is
what a server without a collector does, and one with it for requests that are not sampled; `otel.py` records.

A span carries names, ids, counts and times that the server chose, and an error's code: never a prompt, an answer or an
exception's message.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]

NO_ATTRIBUTES: Attributes = {}


class RequestTrace:
    """A span, and the context manager that ends it. Times are seconds of the monotonic clock."""

    __slots__ = ("trace_id",)
    is_recorded = False

    def __init__(self, trace_id: str | None = None) -> None:
        self.trace_id = trace_id  # 32 hex digits; for the log. None: nobody traces

    def __enter__(self) -> "RequestTrace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        return None

    def stage(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> "RequestTrace":
        """A child that begins now, and ends with its `with` block."""
        return self

    def record(self, name: str, begin: float, end: float, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """A child that has been."""

    def describe(self, attributes: Attributes, *, name: str | None = None) -> None:
        """Adds attributes; `name` replaces the span's."""

    def end(self, code: str | None = None) -> None:
        """`code` is an error's. What is told of the span later is lost."""

    @property
    def log_fields(self) -> dict[str, Any]:
        return {} if self.trace_id is None else {"trace_id": self.trace_id}


UNTRACED = RequestTrace()


class Tracing:
    """Where traces begin: here, none."""

    def begin(
        self, name: str, headers: Mapping[str, str], arrival: float, attributes: Attributes = NO_ATTRIBUTES
    ) -> RequestTrace:
        """The span of a request that came with these headers (`traceparent` says whose part it is)."""
        return UNTRACED

    def close(self) -> None:
        """Sends what is left, for a few seconds at most. Blocks."""

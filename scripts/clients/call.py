"""One call of one client, and the server that it is tried on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ASK = "Say hello."
SUM = "What is 1 and 2? Use the tool."
TIMEOUT_SECONDS = 600.0
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Target:
    url: str  # without /v1
    key: str
    model: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Call:
    client: str
    name: str
    run: Callable[[Target], None]


def expect(truth: object, what: str) -> None:
    """Raises RuntimeError."""
    if not truth:
        raise RuntimeError(f"not as expected: {what}")

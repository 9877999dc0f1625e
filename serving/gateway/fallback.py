"""What is told where a smaller model stands in for the one that was asked."""

from dataclasses import dataclass
from typing import Literal

Reason = Literal["engine_down", "engine_full"]
_WORDS: dict[str, str] = {"engine_down": "is away", "engine_full": "has more to do than it can"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    asked: str
    answered_by: str
    reason: str  # a Reason

    @property
    def text(self) -> str:
        return f"{self.answered_by} answers in place of {self.asked}, which {_WORDS[self.reason]}"

    @property
    def facts(self) -> dict[str, str]:
        return {"asked": self.asked, "answered_by": self.answered_by, "reason": self.reason}

    @property
    def header(self) -> str:
        return f"{self.answered_by}; asked={self.asked}; reason={self.reason}"

"""What a judge is shown, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Direction = Literal["input", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text, of which the last `fresh` characters have not been judged; what stands before them is context."""

    text: str
    direction: Direction
    fresh: int
    asked: str = ""  # of an answer: the newest message of the prompt


@dataclass(frozen=True, slots=True)
class Finding:
    category: str  # one of settings.moderation.CATEGORIES
    score: float  # 0 .. 1, comparable with a policy's thresholds
    start: int | None = None  # the character of the passage where it begins; None: not known
    judge: str = ""  # whose it is, as the deployment calls it


class Judge(Protocol):
    @property
    def categories(self) -> frozenset[str]:
        """Those that it can find."""
        ...

    @property
    def immediate(self) -> bool:
        """Whether it answers within microseconds, without waiting for anybody."""
        ...

    async def judge(self, passage: Passage) -> Sequence[Finding]:
        """At most one finding of a category; what is not found has the score 0. Raises WeftError where it cannot
        tell."""
        ...

    async def close(self) -> None: ...

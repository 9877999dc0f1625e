"""What an answer consists of."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    index: int  # of the calls of this answer
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


Part = str | Reasoning | ToolCall  # a str is content


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText:
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    parts: tuple[Part, ...] = field(default=(), compare=False)  # all, in the order in which they stand

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "ParsedText":
        if len(parts) == 1 and isinstance(parts[0], str):  # nearly every token of nearly every answer
            return cls(content=parts[0], parts=(parts[0],))
        return cls(
            content="".join(part for part in parts if isinstance(part, str)),
            reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
            tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
            parts=tuple(parts),
        )


def begun_at_end(text: str, tag: str) -> int:
    """The length of the longest suffix of the text that the tag begins with, and is longer than."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)

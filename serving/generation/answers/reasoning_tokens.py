"""How many tokens of an answer went into its reasoning."""

from collections.abc import Sequence

from serving.generation.answers.parts import Part, Reasoning, ToolCall


class ReasoningTokens:
    """A token is of the part that it leads to: tags and headers, of the one that they begin. Where one step brings
    reasoning and what follows it, they share its tokens as they share its text."""

    def __init__(self) -> None:
        self.count = 0
        self._told = 0  # tokens that are a part's
        self._reasons = False  # the last part was reasoning

    def see(self, tokens: int, parts: Sequence[Part], *, is_last: bool) -> None:
        """`tokens` that the answer has so far, and what has just become certain of it."""
        new = tokens - self._told
        if parts:
            thought = sum(len(part.text) for part in parts if isinstance(part, Reasoning))
            self.count += round(new * thought / max(1, sum(map(_length, parts))))
            self._reasons = isinstance(parts[-1], Reasoning)
        elif not is_last:
            return
        elif self._reasons:
            self.count += new
        self._told = tokens


def _length(part: Part) -> int:
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments)
    return len(part.text if isinstance(part, Reasoning) else part)

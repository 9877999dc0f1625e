"""A choice's deltas to the parts of its answer."""

from collections.abc import Iterator, Sequence
from typing import Any

from serving.engine.request import FinishReason
from serving.generation.answers.answer_reader import AnswerReader
from serving.generation.answers.parts import ParsedText
from serving.generation.answers.reasoning_tokens import ReasoningTokens
from serving.generation.request import TextDelta


class DeltaReader:
    """`call_ids` are taken in the order of the calls; `tools` as for an AnswerReader."""

    def __init__(self, tools: Sequence[dict[str, Any]] | None, call_ids: Iterator[str]) -> None:
        self._tools = tools
        self._call_ids = call_ids
        self._reasoned = ReasoningTokens()
        self._reader: AnswerReader | None = None  # made for the first delta, which says how the answer is written

    @property
    def calls_made(self) -> int:
        return 0 if self._reader is None else self._reader.calls_made

    @property
    def reasoning_tokens(self) -> int:
        """Of what has become certain."""
        return self._reasoned.count

    def read(self, delta: TextDelta) -> ParsedText:
        """What has become certain; with the last delta, all that is left."""
        parsed = self._read(delta)
        if delta.answer.reasoning:
            self._reasoned.see(delta.usage.completion_tokens, parsed.parts, is_last=delta.finish_reason is not None)
        return parsed

    def _read(self, delta: TextDelta) -> ParsedText:
        if self._reader is None:
            self._reader = AnswerReader(delta.answer, self._tools, lambda: next(self._call_ids))
        parsed = self._reader.feed(delta.text)
        if delta.finish_reason is None:
            return parsed
        return ParsedText.of([*parsed.parts, *self._reader.finish(cut=_is_cut(delta)).parts])


def _is_cut(delta: TextDelta) -> bool:
    """Whether a limit, or a client's stop string, has ended it. One that is a tag ends it where the model does."""
    stop = delta.stop_reason
    if delta.finish_reason is not FinishReason.STOP:
        return True
    return isinstance(stop, str) and stop not in delta.answer.tags(with_tools=True)

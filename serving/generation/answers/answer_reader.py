"""An answer's text, as it comes, to its parts."""

from collections.abc import Callable, Sequence
from typing import Any

from serving.generation.answers.answer_form import AnswerForm
from serving.generation.answers.call_forms import CALL_FORMS
from serving.generation.answers.call_parser import CallParser, call_id
from serving.generation.answers.harmony import HARMONY, HarmonyParser
from serving.generation.answers.parts import ParsedText, Part
from serving.generation.answers.reasoning import REASONING_FORMS, ReasoningParser


class AnswerReader:
    """What `feed` and `finish` return, joined, is the same however the text was cut."""

    def __init__(
        self, form: AnswerForm, tools: Sequence[dict[str, Any]] | None, new_id: Callable[[], str] = call_id
    ) -> None:
        """`tools` in chat completions' form; where there are none, what looks like a call is content."""
        self._harmony: HarmonyParser | None = None
        self._reasoning: ReasoningParser | None = None
        self._calls: CallParser | None = None
        if HARMONY in (form.reasoning, form.calls):
            self._harmony = HarmonyParser(with_tools=bool(tools), new_id=new_id)
            return
        if form.reasoning:
            self._reasoning = ReasoningParser(REASONING_FORMS[form.reasoning], form.begins)
        if tools and form.calls:
            schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
            self._calls = CallParser(CALL_FORMS[form.calls], schemas, new_id)

    @property
    def calls_made(self) -> int:
        calls = self._harmony or self._calls
        return 0 if calls is None else calls.calls_made

    def feed(self, text: str) -> ParsedText:
        if self._harmony is not None:
            return ParsedText.of(self._harmony.feed(text))
        return ParsedText.of(self._called([text] if self._reasoning is None else self._reasoning.feed(text)))

    def finish(self, *, cut: bool = False) -> ParsedText:
        """What the end of the answer makes certain. `cut`: it is not the model's own, so that a call which is not seen
        to be whole is none."""
        if self._harmony is not None:
            return ParsedText.of(self._harmony.finish(cut=cut))
        parts = self._called([] if self._reasoning is None else self._reasoning.finish())
        return ParsedText.of(parts if self._calls is None else [*parts, *self._calls.finish(cut=cut)])

    def _called(self, parts: Sequence[Part]) -> list[Part]:
        found: list[Part] = []
        for part in parts:
            if isinstance(part, str) and self._calls is not None:
                found += self._calls.feed(part)
            elif part:
                found.append(part)
        return found

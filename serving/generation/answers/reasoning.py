"""What a model thinks before it answers, told apart from the answer."""

from dataclasses import dataclass
from enum import StrEnum

from serving.generation.answers.parts import Part, Reasoning, begun_at_end


class Begins(StrEnum):
    """How an answer begins, as the end of its prompt decides."""

    OPEN = "open"  # inside reasoning: the prompt has opened it
    EITHER = "either"  # with reasoning, where its tag comes first
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    opening: str
    closing: str


REASONING_FORMS: dict[str, ReasoningForm] = {
    "think": ReasoningForm("<think>", "</think>"),
    "mistral": ReasoningForm("[THINK]", "[/THINK]"),
}


def reasoning_form_of(template: str) -> str:
    """Its name; "" where the template knows of no reasoning. A form's closing tag counts too: some templates only cut
    reasoning out of earlier answers."""
    found = (name for name, form in REASONING_FORMS.items() if form.opening in template or form.closing in template)
    return next(found, "")


class ReasoningParser:
    """Takes an answer in chunks, gives reasoning and what comes after it. How it is cut into chunks changes nothing.

    Line breaks next to the tags belong to neither. An answer that ends before its reasoning does is all reasoning.
    """

    def __init__(self, form: ReasoningForm, begins: Begins) -> None:
        self._form = form
        self._begins = begins
        self._text = ""  # not yet given out
        self._at_start = begins is not Begins.CONTENT  # of the part that is being read: line breaks are dropped

    def feed(self, chunk: str) -> list[Part]:
        if self._begins is Begins.CONTENT and not self._at_start:
            return [chunk] if chunk else []
        self._text += chunk
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        text, self._text = self._text, ""
        if not text:
            return []
        if self._begins is Begins.OPEN:
            text = text.rstrip("\n")
            return [Reasoning(text)] if text else []
        return [text]

    def _advance(self, parts: list[Part]) -> bool:
        match self._begins:
            case Begins.EITHER:
                return self._begin()
            case Begins.OPEN:
                return self._reason(parts)
            case Begins.CONTENT:
                self._answer(parts)
                return False

    def _begin(self) -> bool:
        begun, opening = self._text.lstrip(), self._form.opening
        if begun.startswith(opening):
            self._text, self._begins = begun[len(opening) :], Begins.OPEN
            return True
        if opening.startswith(begun):
            return False
        self._begins, self._at_start = Begins.CONTENT, False  # an answer without reasoning keeps its white space
        return True

    def _reason(self, parts: list[Part]) -> bool:
        closing = self._form.closing
        if self._at_start:
            self._text = self._text.lstrip("\n")
            if not self._text:
                return False
            self._at_start = False
        at = self._text.find(closing)
        if at < 0:
            keep = begun_at_end(self._text, closing)
            shown = self._text[: len(self._text) - keep].rstrip("\n")
            self._text = self._text[len(shown) :]
        else:
            shown = self._text[:at].rstrip("\n")
            self._text, self._begins, self._at_start = self._text[at + len(closing) :], Begins.CONTENT, True
        if shown:
            parts.append(Reasoning(shown))
        return at >= 0

    def _answer(self, parts: list[Part]) -> None:
        if self._at_start:
            self._text = self._text.lstrip("\n")
            self._at_start = not self._text
        text, self._text = self._text, ""
        if text:
            parts.append(text)

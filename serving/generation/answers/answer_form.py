"""The form of one answer: what it may hold beside content, by name, so that a log can keep it with the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.generation.answers.call_forms import CALL_FORMS, call_form_of
from serving.generation.answers.harmony import HARMONY, HARMONY_MARK, HARMONY_TAGS
from serving.generation.answers.reasoning import REASONING_FORMS, Begins, reasoning_form_of

AUTO, NONE = "auto", "none"
CALL_FORM_NAMES = (*CALL_FORMS, HARMONY)
REASONING_FORM_NAMES = (*REASONING_FORMS, HARMONY)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    reasoning: str = ""  # one of REASONING_FORM_NAMES; "": all is content
    calls: str = ""  # one of CALL_FORM_NAMES; "": none are read
    begins: Begins = Begins.CONTENT

    def tags(self, *, with_tools: bool) -> Sequence[str]:
        """Without these in its text an answer could not be read: they are shown even where they are control tokens."""
        if HARMONY in (self.reasoning, self.calls):
            return HARMONY_TAGS
        found: list[str] = []
        if self.reasoning:
            form = REASONING_FORMS[self.reasoning]
            found += form.opening, form.closing
        if self.calls and with_tools:
            found += CALL_FORMS[self.calls].tags
        return found


PLAIN = AnswerForm()


def form_of(template: str, *, reasoning: str = AUTO, calls: str = AUTO) -> AnswerForm:
    """Of answers to prompts that the template renders: by the template's own marks, or as the deployment says."""
    harmony = HARMONY if HARMONY_MARK in template else ""
    if reasoning == AUTO:
        reasoning = harmony or reasoning_form_of(template)
    if calls == AUTO:
        calls = harmony or call_form_of(template)
    return AnswerForm(
        reasoning="" if reasoning == NONE else reasoning,
        calls="" if calls == NONE else calls,
        begins=Begins.EITHER if reasoning not in (NONE, "") else Begins.CONTENT,
    )


def begins_after(form: AnswerForm, prompt: str) -> Begins:
    """What the end of a rendered prompt leaves the model to begin with."""
    if form.reasoning in ("", HARMONY):
        return form.begins
    tags, end = REASONING_FORMS[form.reasoning], prompt.rstrip()
    if end.endswith(tags.opening):
        return Begins.OPEN
    return Begins.CONTENT if end.endswith(tags.closing) else Begins.EITHER

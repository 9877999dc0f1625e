import json
from typing import get_args

from serving.generation.answers.answer_form import (
    AUTO,
    CALL_FORM_NAMES,
    NONE,
    PLAIN,
    REASONING_FORM_NAMES,
    AnswerForm,
    begins_after,
    form_of,
)
from serving.generation.answers.answer_reader import AnswerReader
from serving.generation.answers.parts import ParsedText
from serving.generation.answers.reasoning import Begins
from serving.settings.model import CallForm, ReasoningForm

TOOLS = [{"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'


def test_a_call_inside_reasoning_is_not_made() -> None:
    form = AnswerForm(reasoning="think", calls="hermes", begins=Begins.EITHER)
    reader = AnswerReader(form, TOOLS)
    parsed = joined(reader, [f"<think>maybe {CALL}</think>Now.", CALL])
    assert parsed.reasoning == f"maybe {CALL}"
    assert parsed.content == "Now."
    assert [json.loads(call.arguments) for call in parsed.tool_calls] == [{}]
    assert reader.calls_made == 1


def test_without_tools_what_looks_like_a_call_is_content() -> None:
    assert joined(AnswerReader(AnswerForm(calls="hermes"), None), [CALL]) == ParsedText(content=CALL)


def test_plain_answers_pass_as_they_are() -> None:
    reader = AnswerReader(PLAIN, TOOLS)
    assert joined(reader, ["<think>", "a</think>", CALL]) == ParsedText(content=f"<think>a</think>{CALL}")


def test_the_deployment_may_name_what_the_template_does_not_tell() -> None:
    qwen = "<think></think><tool_call>"
    assert form_of(qwen) == AnswerForm(reasoning="think", calls="hermes", begins=Begins.EITHER)
    assert form_of(qwen, reasoning=NONE, calls=NONE) == PLAIN
    assert form_of("", calls="llama3").calls == "llama3"
    assert form_of("<|channel|>").tags(with_tools=False) == form_of("<|channel|>").tags(with_tools=True)
    assert set(get_args(CallForm)) == {AUTO, NONE, *CALL_FORM_NAMES}
    assert set(get_args(ReasoningForm)) == {AUTO, NONE, *REASONING_FORM_NAMES}


def test_the_end_of_the_prompt_says_how_an_answer_begins() -> None:
    form = form_of("<think></think>")
    assert begins_after(form, "<|assistant|><think>\n") is Begins.OPEN
    assert begins_after(form, "<|assistant|><think>\n\n</think>\n\n") is Begins.CONTENT
    assert begins_after(form, "<|assistant|>") is Begins.EITHER


def joined(reader: AnswerReader, chunks: list[str]) -> ParsedText:
    parts = [part for chunk in chunks for part in reader.feed(chunk).parts]
    return ParsedText.of([*parts, *reader.finish().parts])

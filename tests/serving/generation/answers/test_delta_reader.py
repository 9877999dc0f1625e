"""What ended an answer decides what becomes of a call that it leaves open."""

import itertools

import pytest

from serving.engine.request import FinishReason
from serving.generation.answers.answer_form import AnswerForm
from serving.generation.answers.delta_reader import DeltaReader
from serving.generation.request import TextDelta, Usage

FORM = AnswerForm(calls="glm_xml")
TOOLS = [{"type": "function", "function": {"name": "time"}}]
USAGE = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=1)


@pytest.mark.parametrize(
    ("reason", "stop", "calls"),
    [
        (FinishReason.STOP, None, 1),
        (FinishReason.STOP, 7, 1),
        (FinishReason.STOP, "</tool_call>", 1),
        (FinishReason.STOP, "END", 0),
        (FinishReason.LENGTH, None, 0),
        (FinishReason.DEADLINE, None, 0),
        (FinishReason.CONTENT_FILTER, None, 0),
    ],
)
def test_only_the_model_leaves_a_closing_tag_out(reason: FinishReason, stop: str | int | None, calls: int) -> None:
    reader = DeltaReader(TOOLS, map(str, itertools.count()))
    said = "<tool_call>time"
    delta = TextDelta(index=0, usage=USAGE, answer=FORM, text=said, finish_reason=reason, stop_reason=stop)
    parsed = reader.read(delta)
    assert len(parsed.tool_calls) == calls
    assert parsed.content == ("" if calls else said)

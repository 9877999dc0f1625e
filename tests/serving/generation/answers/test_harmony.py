import itertools
import json
import random

import pytest

from serving.generation.answers.harmony import HarmonyParser
from serving.generation.answers.parts import ParsedText, Part

THOUGHT = "<|channel|>analysis<|message|>Simple.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>Four."
CALL = '<|channel|>commentary to=functions.sum <|constrain|>json<|message|>{"a": 2}<|call|>'


def test_channels_are_reasoning_and_content() -> None:
    assert read(THOUGHT + NEXT + FINAL) == ParsedText(content="Four.", reasoning="Simple.")
    assert read(THOUGHT + NEXT + FINAL + "<|return|>") == ParsedText(content="Four.", reasoning="Simple.")
    assert read("<|channel|>commentary<|message|>I will add.<|end|>" + NEXT + FINAL).content == "I will add.Four."
    assert read("<|channel|>analysis<|message|>cut o") == ParsedText(reasoning="cut o")
    assert read("<|channel|>analysis") == ParsedText()


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        CALL.removesuffix("<|call|>"),
        ' to=functions.sum<|channel|>commentary json<|message|>{"a": 2}<|call|>',
    ],
)
def test_a_message_to_a_function_is_a_call(call: str) -> None:
    parsed = read(THOUGHT + NEXT + call)
    assert parsed.reasoning == "Simple."
    assert parsed.content == ""
    assert [(made.name, json.loads(made.arguments)) for made in parsed.tool_calls] == [("sum", {"a": 2})]


def test_what_is_sent_to_a_function_and_is_no_object_is_content() -> None:
    assert read("<|channel|>commentary to=functions.sum<|message|>[1<|call|>") == ParsedText(content="[1")


def test_a_call_that_was_cut_off_before_its_arguments_is_none() -> None:
    begun = "<|channel|>commentary to=functions.sum<|message|>"
    for cut, calls in ((True, 0), (False, 1)):
        parser = HarmonyParser(with_tools=True, new_id=ids())
        assert len(ParsedText.of([*parser.feed(begun), *parser.finish(cut=cut)]).tool_calls) == calls


def test_a_call_with_a_number_that_json_has_no_word_for_is_none() -> None:
    call = '<|channel|>commentary to=functions.sum<|message|>{"a": NaN}'
    assert read(f"{call}<|call|>") == ParsedText(content='{"a": NaN}')


def test_without_tools_nothing_is_a_call() -> None:
    assert read(CALL, with_tools=False) == ParsedText(content='{"a": 2}')


def test_an_answer_that_continues_a_message_is_content() -> None:
    assert read(" and four.") == ParsedText(content=" and four.")
    assert read("<b> is bold") == ParsedText(content="<b> is bold")


def test_an_end_that_was_left_out_ends_a_message_too() -> None:
    assert read("<|channel|>analysis<|message|>Hm." + FINAL) == ParsedText(content="Four.", reasoning="Hm.")


def test_any_chunking_gives_the_same_as_the_whole() -> None:
    draw = random.Random(2)
    pieces = [THOUGHT, NEXT, FINAL, CALL, "<|end|>", "<|return|>", "text", " <|", "\n", "<|start|>"]
    for _ in range(400):
        text = "".join(draw.choices(pieces, k=draw.randrange(6)))
        parser, parts, at = HarmonyParser(with_tools=True, new_id=ids()), list[Part](), 0
        while at < len(text):
            size = draw.randrange(1, 14)
            parts += parser.feed(text[at : at + size])
            at += size
        assert ParsedText.of([*parts, *parser.finish()]) == read(text), text


def read(text: str, *, with_tools: bool = True) -> ParsedText:
    parser = HarmonyParser(with_tools=with_tools, new_id=ids())
    return ParsedText.of([*parser.feed(text), *parser.finish()])


def ids():
    counter = itertools.count()
    return lambda: str(next(counter))

import itertools
import json
import random

import pytest

from serving.generation.answers.call_forms import CALL_FORMS
from serving.generation.answers.call_parser import CallParser, call_id
from serving.generation.answers.parts import ParsedText, Part

HERMES = CALL_FORMS["hermes"]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
OTHER = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'


def test_content_and_calls_are_told_apart() -> None:
    parsed = _parse(f"Let me look.\n{CALL}\n{OTHER}\n")
    assert parsed.content == "Let me look."
    assert [(call.index, call.id, call.name) for call in parsed.tool_calls] == [(0, "0", "weather"), (1, "1", "time")]
    assert json.loads(parsed.tool_calls[0].arguments) == {"city": "Köln", "days": [1, 2]}
    assert parsed.tool_calls[1].arguments == "{}"


@pytest.mark.parametrize(
    "text",
    [
        "no calls, but a < and a <tool and white space \n",
        "<tool_call>{not json}</tool_call> after",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
        '  <tool_call>{"name": "f", "arg',
        "<tool_call>",
        "</tool_call> alone",
        "<tool_call>" * 3,
        '<tool_call>{"a": "never closed</tool_call> tail',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_what_is_no_call_stays_content_to_the_last_character(text: str) -> None:
    assert _parse(text) == ParsedText(content=text)


def test_a_closing_tag_inside_an_argument_does_not_end_the_call() -> None:
    parsed = _parse('<tool_call>{"name": "write", "arguments": {"text": "</tool_call>"}}</tool_call>')
    assert json.loads(parsed.tool_calls[0].arguments) == {"text": "</tool_call>"}


def test_a_call_without_its_closing_tag_at_the_end_is_made() -> None:
    parsed = _parse('<tool_call>{"name": "time", "arguments": {}}\n')
    assert [call.name for call in parsed.tool_calls] == ["time"]
    assert parsed.content == ""


def test_half_of_a_pair_in_an_argument_is_replaced_and_a_whole_one_joined() -> None:
    parsed = _parse(
        '<tool_call>{"name": "say", "arguments": {"text": "caf\\ud83d", "face": "\\ud83d\\ude00"}}</tool_call>'
    )
    assert json.loads(parsed.tool_calls[0].arguments) == {"text": "caf\ufffd", "face": "\U0001f600"}


def test_a_broken_call_between_good_ones_is_content_in_its_place() -> None:
    parsed = _parse(f"{OTHER}<tool_call>oops</tool_call>{OTHER}")
    assert parsed.content == "<tool_call>oops</tool_call>"
    assert [call.index for call in parsed.tool_calls] == [0, 1]


def test_any_chunking_gives_the_same_as_the_whole() -> None:
    draw = random.Random(13)
    pieces = [CALL, OTHER, "<tool_call>bad</tool_call>", "text ", " \n", "<tool", "</tool_call>", '{"', "<", "x"]
    for _ in range(500):
        text = "".join(draw.choices(pieces, k=draw.randrange(6)))
        parser = CallParser(HERMES, {}, _ids())
        parts: list[Part] = []
        at = 0
        while at < len(text):
            size = draw.randrange(1, 9)
            parts += parser.feed(text[at : at + size])
            at += size
        parts += parser.finish()
        assert ParsedText.of(parts) == _parse(text)


def test_plain_text_is_given_out_at_once() -> None:
    parser = CallParser(HERMES, {})
    assert parser.feed("hello") == ["hello"]
    assert parser.feed(" world <") == [" world"]
    assert parser.feed("b>") == [" <b>"]


def test_ids_are_new_for_every_call() -> None:
    ids = [call_id() for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(one.startswith("call_") for one in ids)


def _parse(text: str) -> ParsedText:
    parser = CallParser(HERMES, {}, _ids())
    return ParsedText.of([*parser.feed(text), *parser.finish()])


def _ids():
    counter = itertools.count()
    return lambda: str(next(counter))

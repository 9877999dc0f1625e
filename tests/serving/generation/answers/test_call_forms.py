"""Answers as models of each family write them."""

import itertools
import json
import random
from typing import Any

import pytest

from serving.generation.answers.call_forms import CALL_FORMS, call_form_of
from serving.generation.answers.call_parser import CallParser
from serving.generation.answers.parts import ParsedText, Part

SCHEMAS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "time": {"type": "object", "properties": {}},
}
KOELN, ZONE = {"city": "Köln", "days": 2}, {}
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"

# form, what comes before, an answer with both calls in it
BOTH = [
    (
        "qwen_xml",
        "I look.",
        "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
    ),
    (
        "glm_xml",
        "",
        "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>time\n</tool_call>",
    ),
    (
        "llama3",
        "",
        '{"name": "weather", "parameters": {"city": "Köln", "days": 2}}; {"name": "time", "parameters": {}}',
    ),
    ("llama3", "", '<|python_tag|>{"name": "weather", "parameters": {"city": "Köln", "days": 2}};{"name": "time"}'),
    ("llama4", "", '[weather(city="Köln", days=2), time()]'),
    ("llama4", "Sure.", 'Sure. <|python_start|>[weather(city="Köln", days=2), time()]<|python_end|>'),
    (
        "mistral",
        "I look.",
        'I look.[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln", "days": 2}}, '
        '{"name": "time", "arguments": {}}]',
    ),
    ("mistral_args", "", '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": 2}[TOOL_CALLS]time[ARGS]{}'),
    (
        "deepseek",
        "I look.",
        "I look.<｜tool▁calls▁begin｜>"
        + V3.format("weather", '{"city": "Köln", "days": 2}')
        + "\n"
        + V3.format("time", "{}")
        + "<｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v31",
        "",
        "<｜tool▁calls▁begin｜>"
        + V31.format("weather", '{"city": "Köln", "days": 2}')
        + V31.format("time", "{}")
        + "<｜tool▁calls▁end｜>",
    ),
    (
        "phi4",
        "",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Köln", "days": 2}}, '
        '{"name": "time", "arguments": {}}]<|/tool_call|>',
    ),
    ("olmo3", "I look.", 'I look.\n<function_calls>\nweather(city="Köln", days=2)\ntime()\n</function_calls>'),
]


@pytest.mark.parametrize(("form", "content", "answer"), BOTH)
def test_calls_are_read_as_each_family_writes_them(form: str, content: str, answer: str) -> None:
    parsed = read(form, answer)
    assert parsed.content.strip() == content
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [
        ("weather", KOELN),
        ("time", ZONE),
    ]
    assert [call.index for call in parsed.tool_calls] == [0, 1]


def test_glm4_writes_the_name_on_a_line_of_its_own() -> None:
    parsed = read("glm4", '\nweather\n{"city": "Köln", "days": 2}')
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [("weather", KOELN)]
    assert parsed.content == ""
    for text in ("weather is fine", "other\n{}", "weather\nis fine", "wea", "\n\n"):
        assert read("glm4", text) == ParsedText(content=text)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama3", '{"answer": 42}'),
        ("llama3", '{"name": "weather", "parameters": {}} and text'),
        ("llama3", '{"name": "weather", "parameters": {"city": '),
        ("llama3", "{not json"),
        ("llama4", "[1, 2, 3]"),
        ("llama4", "[weather(open('x').read())]"),
        ("llama4", "[weather(1)]"),
        ("llama4", "[weather(**{})]"),
        ("llama4", "[__import__('os').system(command='true')(a=1), 2]"),
        ("llama4", "[" * 100_000),
        ("llama4", "[f(a=" + "-" * 50_000 + "1)]"),
        ("mistral", "[TOOL_CALLS] nothing"),
        ("mistral_args", "[TOOL_CALLS]weather[ARGS]{"),
        ("deepseek", "<｜tool▁calls▁begin｜>what<｜tool▁calls▁end｜>"),
        ("deepseek", f"<｜tool▁calls▁begin｜>{V3.format('time', '{}')}and more<｜tool▁calls▁end｜>"),
        (
            "deepseek_v31",
            f"<｜tool▁calls▁begin｜>{V31.format('time', '{}')}<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{{",
        ),
        ("phi4", '<|tool_call|>{"name": "time"}<|/tool_call|>'),
        ("olmo3", "<function_calls>no call</function_calls>"),
        ("qwen_xml", "<tool_call><function=unknown></function></tool_call>"),
        ("qwen_xml", "<tool_call><function=time>text</function></tool_call>"),
        ("glm_xml", "<tool_call>unknown</tool_call>"),
    ],
)
def test_what_is_no_call_is_content_to_the_last_character(form: str, text: str) -> None:
    assert read(form, text) == ParsedText(content=text)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("glm_xml", "<tool_call>time"),
        ("glm_xml", "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Köln</arg_value>"),
        ("qwen_xml", "<tool_call><function=time>"),
        ("qwen_xml", "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"),
    ],
)
def test_a_call_that_may_lack_arguments_is_none_where_it_was_cut_off(form: str, text: str) -> None:
    assert read(form, text, cut=True) == ParsedText(content=text)
    assert len(read(form, text).tool_calls) == 1


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen_xml", "<tool_call><function=time></function>\n"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {}}'),
        ("llama3", '{"name": "time", "parameters": {}}'),
        ("glm4", "time\n{}"),
        ("mistral_args", "[TOOL_CALLS]time[ARGS]{}"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {}}\n</tool_ca'),
        ("glm_xml", "<tool_call>time</"),
        ("qwen_xml", "<tool_call><function=time></function></tool_call"),
        ("olmo3", "<function_calls>\ntime()\n</function_"),
    ],
)
def test_a_call_that_is_seen_to_be_whole_is_made_where_the_answer_was_cut_off_behind_it(form: str, text: str) -> None:
    assert [call.name for call in read(form, text, cut=True).tool_calls] == ["time"]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("glm_xml", "<tool_call>time<"),
        ("glm_xml", "<tool_call>weather<arg_key>city</arg_key><arg_value>Köln</"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"zone": "</tool_ca'),
        ("qwen_xml", "<tool_call><function=weather><parameter=city>Köln</"),
    ],
)
def test_the_beginning_of_another_tag_does_not_close_a_call_that_was_cut_off(form: str, text: str) -> None:
    assert read(form, text, cut=True) == ParsedText(content=text)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": @}}</tool_call>'),
        ("llama3", '{"name": "f", "parameters": {"a": @}}'),
        ("mistral_args", '[TOOL_CALLS]f[ARGS]{"a": @}'),
        ("llama4", "[f(a=@)]"),
    ],
)
def test_a_call_with_a_number_that_json_has_no_word_for_is_none(form: str, text: str, number: str) -> None:
    said = text.replace("@", number)
    assert read(form, said) == ParsedText(content=said)


def test_a_value_without_quotes_that_is_no_number_of_json_is_text() -> None:
    text = "<tool_call>time<arg_key>zone</arg_key><arg_value>NaN</arg_value></tool_call>"
    parser = CallParser(CALL_FORMS["glm_xml"], {"time": {}})
    (call,) = ParsedText.of(parser.feed(text)).tool_calls
    assert json.loads(call.arguments) == {"zone": "NaN"}


def test_values_without_quotes_become_what_their_schema_says() -> None:
    schema = {"properties": {"id": {"type": "string"}, "n": {"type": "number"}, "on": {"type": "boolean"}, "any": {}}}
    text = "<tool_call><function=f><parameter=id>\n007\n</parameter><parameter=n>2.5</parameter>"
    text += "<parameter=on>True</parameter><parameter=any>a\nb</parameter></function></tool_call>"
    parser = CallParser(CALL_FORMS["qwen_xml"], {"f": schema})
    (call,) = ParsedText.of([*parser.feed(text), *parser.finish()]).tool_calls
    assert json.loads(call.arguments) == {"id": "007", "n": 2.5, "on": True, "any": "a\nb"}


@pytest.mark.parametrize("optional", ["anyOf", "oneOf", "type"])
def test_a_value_that_may_be_a_string_is_no_number(optional: str) -> None:
    """Optional[str], as pydantic and MCP's servers write it; an enum needs no type."""
    kinds = ["string", "null", "object"]
    loose: dict[str, Any] = {"type": kinds} if optional == "type" else {optional: [{"type": kind} for kind in kinds]}
    schema = {"properties": dict.fromkeys("abc", loose) | {"d": {"enum": ["1", "2"]}, "e": {"enum": [1, 2]}}}
    values = {"a": "12345", "b": "null", "c": '{"x": 1}', "d": "1", "e": "1"}
    body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    parser = CallParser(CALL_FORMS["qwen_xml"], {"f": schema})
    (call,) = ParsedText.of(parser.feed(f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>")).tool_calls
    assert json.loads(call.arguments) == {"a": "12345", "b": None, "c": {"x": 1}, "d": "1", "e": 1}


@pytest.mark.parametrize("form", CALL_FORMS)
def test_any_chunking_gives_the_same_as_the_whole(form: str) -> None:
    draw = random.Random(13)
    tags = [tag for tag in CALL_FORMS[form].tags for _ in range(2)]
    answers = [answer for name, _, answer in BOTH if name == form] or ['weather\n{"days": 1}']
    for _ in range(120):
        pieces = [*answers, *tags, "text ", " \n", '{"', "[", "weather", "\n{}", "x"]
        text = "".join(draw.choices(pieces, k=draw.randrange(5)))
        parser, parts, at = CallParser(CALL_FORMS[form], SCHEMAS, ids()), list[Part](), 0
        while at < len(text):
            size = draw.randrange(1, 12)
            parts += parser.feed(text[at : at + size])
            at += size
        assert ParsedText.of([*parts, *parser.finish()]) == read(form, text), text


@pytest.mark.parametrize("form", CALL_FORMS)
def test_plain_text_does_not_wait(form: str) -> None:
    parser = CallParser(CALL_FORMS[form], SCHEMAS)
    assert parser.feed("Hello") == ["Hello"]
    assert parser.feed(", you") == [", you"]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ('{% if tools %}<tool_call>\\n{"name": <function-name>{% endif %}', "hermes"),
        ("{{ '<tool_call>\\n<function=' + call.name }}", "qwen_xml"),
        ("<tool_call>{{ name }}\\n{% for k, v in args %}<arg_key>{{ k }}</arg_key>", "glm_xml"),
        ("[AVAILABLE_TOOLS]...[TOOL_CALLS] [{{ call }}]", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", "mistral_args"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ type }}<｜tool▁sep｜>{{ name }}\n```json\n", "deepseek"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", "deepseek_v31"),
        ("<|start_header_id|>{{ role }}<|end_header_id|>{{ '\"parameters\": ' }}", "llama3"),
        ("<|header_start|>assistant<|header_end|><|python_start|>", "llama4"),
        ("[gMASK]<sop><|observation|>", "glm4"),
        ("<|im_start|>{{ role }}", ""),
    ],
)
def test_a_form_is_known_by_its_marks(template: str, form: str) -> None:
    assert call_form_of(template) == form


def read(form: str, text: str, *, cut: bool = False) -> ParsedText:
    parser = CallParser(CALL_FORMS[form], SCHEMAS, ids())
    return ParsedText.of([*parser.feed(text), *parser.finish(cut=cut)])


def ids():
    counter = itertools.count()
    return lambda: str(next(counter))

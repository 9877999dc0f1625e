"""The form that a client asks for reaches the engine as a grammar, or is refused by the name of its field."""

import json
from typing import Any

import pytest

from serving.engine.request import FinishReason, GrammarKind, GrammarSpec, TokenEvent
from serving.errors import RequestError
from tests.fakes.engine import Script
from tests.serving.api.conftest import ApiMaker, Body, chat_body, text_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def listing(**fields: Any) -> dict[str, Any]:
    """A tool whose arguments are no object."""
    return {"type": "function", "function": {"name": "list", "parameters": {"type": "array"}, **fields}}


STRICT = {"type": "function", "function": {"name": "find", "parameters": SCHEMA, "strict": True}}


def _body(path: str, **fields: Any) -> Body:
    return chat_body(**fields) if path == CHAT else text_body(**fields)


def named(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


async def grammar_of(make_api: ApiMaker, path: str, **fields: Any) -> GrammarSpec | None:
    api = make_api(make_api.says("x"))
    reply = await api.post(path, _body(path, **fields))
    assert reply.status_code == 200, reply.text
    return api.engine.requests[0].grammar


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": named(SCHEMA)}, "json_schema", json.dumps(SCHEMA, separators=(",", ":"))),
        ({"structured_outputs": {"json": {"enum": [1]}}}, "json_schema", '{"enum":[1]}'),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", 'b"']}}, "choice", '["a","b\\""]'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"'),
        ({"guided_json": '{"enum": [1]}'}, "json_schema", '{"enum": [1]}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a"]}, "choice", '["a"]'),
        ({"guided_grammar": 'root ::= "a"', "guided_decoding_backend": "auto"}, "ebnf", 'root ::= "a"'),
    ],
)
async def test_a_form_reaches_the_engine(
    make_api: ApiMaker, path: str, fields: dict[str, Any], kind: str, text: str
) -> None:
    assert await grammar_of(make_api, path, **fields) == GrammarSpec(kind=GrammarKind(kind), text=text)


async def test_text_is_any_text(make_api: ApiMaker) -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": {"json_object": False}}):
        assert await grammar_of(make_api, CHAT, **fields) is None


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
    ],
)
async def test_what_is_no_form_is_refused_by_name(
    make_api: ApiMaker, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = await make_api().post(path, _body(path, **fields))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar"),
        ({"tools": [STRICT]}, "tools"),
    ],
)
async def test_what_the_engine_refuses_has_the_name_of_the_clients_field(
    make_api: ApiMaker, fields: dict[str, Any], param: str
) -> None:
    refusal = RequestError("the grammar cannot be used: it is odd", param="grammar", code="invalid_grammar")
    reply = await make_api(Script(token_ids=[], raises=refusal)).post(CHAT, chat_body(**fields))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_grammar")


async def test_a_grammar_that_fails_in_the_middle_is_the_requests_fault(make_api: ApiMaker) -> None:
    class Failing:
        async def generate(self, request: Any) -> Any:
            yield TokenEvent(
                request_id=request.request_id, finish_reason=FinishReason.ERROR, error="a limit", error_param="grammar"
            )

    api = make_api()
    api.engine.generate = Failing().generate  # type: ignore[method-assign]
    reply = await api.post(CHAT, chat_body(guided_regex="a"))
    assert reply.status_code == 400
    assert (reply.json()["error"]["param"], reply.json()["error"]["code"]) == ("guided_regex", "grammar_too_complex")


# Tools.


async def test_tools_alone_bind_nothing(make_api: ApiMaker) -> None:
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": True}):
        assert await grammar_of(make_api, CHAT, tools=[TOOL], **fields) is None


@pytest.mark.parametrize(
    ("fields", "names", "required", "many"),
    [
        ({"tools": [TOOL, STRICT], "tool_choice": "required"}, ["look", "find"], True, True),
        (
            {"tools": [TOOL, STRICT], "tool_choice": {"type": "function", "function": {"name": "find"}}},
            ["find"],
            True,
            False,
        ),
        ({"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}, ["look"], True, False),
        ({"tools": [TOOL], "parallel_tool_calls": False}, ["look"], False, False),
        ({"tools": [TOOL, STRICT]}, ["look", "find"], False, True),
    ],
)
async def test_calls_that_are_asked_for_become_a_grammar(
    make_api: ApiMaker, fields: dict[str, Any], names: list[str], required: bool, many: bool
) -> None:
    grammar = await grammar_of(make_api, CHAT, **fields)
    assert grammar is not None
    assert grammar.kind is GrammarKind.LARK
    assert [name for name in ("look", "find") if f'\\"{name}\\"' in grammar.text] == names
    assert grammar.text.startswith("start: TEXT |") is not required
    assert ('("\\n"? call)*' in grammar.text) is many


async def test_with_a_response_format_an_answer_is_that_or_calls(make_api: ApiMaker) -> None:
    grammar = await grammar_of(make_api, CHAT, tools=[TOOL], response_format=named({"enum": ["only"]}))
    assert grammar is not None
    assert grammar.text.startswith("start: content | call")
    assert '"only"' in grammar.text
    free = await grammar_of(make_api, CHAT, tools=[TOOL], tool_choice="none", response_format=named({"enum": [1]}))
    assert free == GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text='{"enum":[1]}')


async def test_strict_is_for_the_server_and_not_for_the_template(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    await api.post(CHAT, chat_body(tools=[STRICT]))
    assert b"strict" not in b"".join(map(make_api.tokenizer.token_bytes, api.engine.requests[0].prompt_token_ids))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [listing(strict=True)]}, "tools"),
        ({"tools": [listing()], "tool_choice": "required"}, "tools"),
        ({"tools": [TOOL], "guided_regex": "a"}, "guided_regex"),
    ],
)
async def test_choices_that_cannot_be_are_refused_by_name(
    make_api: ApiMaker, fields: dict[str, Any], param: str
) -> None:
    reply = await make_api().post(CHAT, chat_body(**fields))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)

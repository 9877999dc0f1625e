"""What a client may ask of the form of its text: OpenAI's `response_format`, and vLLM's names for the rest."""

import re
from typing import Annotated, Any, Protocol

import msgspec

from serving.engine.request import GrammarKind, GrammarSpec
from serving.errors import RequestError

ANY_OBJECT: dict[str, Any] = {"type": "object"}
_EBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    pass


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None  # it is followed either way


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat
Choices = Annotated[list[str], msgspec.Meta(min_length=1)]


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class FormatFields(Protocol):
    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: dict[str, Any] | str | None
    guided_regex: str | None
    guided_choice: Choices | None
    guided_grammar: str | None


class AskedFormat(msgspec.Struct, frozen=True):
    param: str  # the field that asks
    grammar: GrammarSpec
    schema: dict[str, Any] | None = None  # where it is `response_format`, which may stand beside tools


FORMAT_WORDS = {"response_format.type": ("text", "json_object", "json_schema")}


def asked_format(body: FormatFields) -> AskedFormat | None:
    """None where any text will do. Raises RequestError where a body asks for two forms."""
    asked = [*_of_response_format(body.response_format), *_of_structured(body.structured_outputs), *_of_guided(body)]
    if len(asked) > 1:
        raise RequestError(
            f"{asked[1].param} and {asked[0].param} exclude each other: a text has one form",
            param=asked[1].param,
            code="invalid_value",
        )
    return asked[0] if asked else None


def _of_response_format(form: ResponseFormat | None) -> list[AskedFormat]:
    match form:
        case JsonObjectFormat():
            return [AskedFormat("response_format", _schema(ANY_OBJECT), ANY_OBJECT)]
        case JsonSchemaFormat(json_schema=named):
            return [AskedFormat("response_format", _schema(named.schema), named.schema)]
    return []


def _of_structured(outputs: StructuredOutputs | None) -> list[AskedFormat]:
    if outputs is None:
        return []
    asked = _asked("structured_outputs.", outputs.json, outputs.regex, outputs.choice, outputs.grammar)
    if outputs.json_object:
        asked.append(AskedFormat("structured_outputs.json_object", _schema(ANY_OBJECT)))
    if not asked and outputs.json_object is None:
        raise RequestError(
            "structured_outputs needs one of json, regex, choice, grammar, json_object",
            param="structured_outputs",
            code="missing_required_parameter",
        )
    return asked


def _of_guided(body: FormatFields) -> list[AskedFormat]:
    return _asked("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)


def _asked(
    prefix: str,
    schema: dict[str, Any] | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> list[AskedFormat]:
    asked = []
    if schema is not None:
        asked.append(AskedFormat(f"{prefix}json", _schema(schema)))
    if regex is not None:
        asked.append(AskedFormat(f"{prefix}regex", GrammarSpec(kind=GrammarKind.REGEX, text=regex)))
    if choice is not None:
        text = msgspec.json.encode(choice).decode()
        asked.append(AskedFormat(f"{prefix}choice", GrammarSpec(kind=GrammarKind.CHOICE, text=text)))
    if grammar is not None:
        kind = GrammarKind.EBNF if _EBNF_RULE.search(grammar) else GrammarKind.LARK
        asked.append(AskedFormat(f"{prefix}grammar", GrammarSpec(kind=kind, text=grammar)))
    return asked


def _schema(schema: dict[str, Any] | str) -> GrammarSpec:
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=text)

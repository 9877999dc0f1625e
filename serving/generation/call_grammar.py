"""The grammar of an answer that may or must call tools, in the form that `tool_calls` reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.engine.request import GrammarKind, GrammarSpec
from serving.generation.tokenizer import Tokenizer
from serving.generation.tool_calls import TOOL_CALL_TAGS

# As in the engine's own JSON grammars: models that may write any white space sometimes write nothing else.
_JSON_SPACE = r" |\r?\n( {0,24}|\t{0,8})"
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    name: str
    arguments: dict[str, Any]  # a JSON schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What an answer may consist of: calls of these tools, or where none is required, content."""

    tools: tuple[CallableTool, ...]
    required: bool  # at least one call, and no content
    many: bool  # more than one call may be made
    content: dict[str, Any] | None = None  # the JSON schema of content; None: content is free, and calls may follow it


def call_grammar(rules: CallRules, tokenizer: Tokenizer) -> GrammarSpec:
    """Calls are written as models are taught to: a tag, JSON with the name first, a tag; line breaks between them as
    the model likes."""
    opening, closing = (_tag(tag, tokenizer) for tag in TOOL_CALL_TAGS)
    more = ' ("\\n"? call)*' if rules.many else ""
    lines = [
        f'call: {opening} "\\n"? body "\\n"? {closing}',
        f"body: {' | '.join(_body(tool) for tool in rules.tools)}",
    ]
    if rules.required:
        lines.insert(0, f"start: call{more}")
    elif rules.content is not None:
        lines.insert(0, f"start: content | call{more}")
        lines.append(f"content: %json {_schema(rules.content)}")
    else:
        lines[:0] = _after_free_text(opening, closing, more)
    return GrammarSpec(kind=GrammarKind.LARK, text="\n".join(lines))


def _after_free_text(opening: str, closing: str, more: str) -> Sequence[str]:
    """Text that is no call, or text and then calls: the opening tag ends it wherever it comes."""
    if opening.startswith("<["):  # no text matches a control token
        return (f"start: TEXT | TEXT call{more}", "TEXT: /(?s:.*)/")
    return (
        f"start: TEXT | first{more}",
        f'first: head "\\n"? body "\\n"? {closing}',
        f"head[lazy]: /(?s:.*){TOOL_CALL_TAGS[0]}/",
        f"TEXT: /(?s:.*)/ & ~/(?s:.*{TOOL_CALL_TAGS[0]}.*)/",
    )


def _body(tool: CallableTool) -> str:
    begin = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
    return f'{begin} %json {_schema(tool.arguments)} "}}"'


def _schema(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": _JSON_SPACE}})


def _tag(tag: str, tokenizer: Tokenizer) -> str:
    ids = tokenizer.encode(tag, add_special_tokens=False)
    if len(ids) == 1 and tokenizer.is_special(ids[0]):
        return f"<[{ids[0]}]>"
    return json.dumps(tag)

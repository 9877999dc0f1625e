"""The grammar of an answer that may or must call tools, in the form in which the model writes calls."""

import json
import re
from dataclasses import dataclass
from typing import Any

from serving.engine.request import GrammarKind, GrammarSpec
from serving.errors import RequestError, UnsupportedError
from serving.generation.answers.call_forms import CALL_FORMS
from serving.generation.answers.harmony import HARMONY, HARMONY_TAGS
from serving.generation.tokenizer import Tokenizer

# As in the engine's own JSON grammars: models that may write any white space sometimes write nothing else.
_JSON_SPACE = r" |\r?\n( {0,24}|\t{0,8})"
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_MAY_BREAK = "↵"  # in the texts below: a line break, if the model likes


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


def arguments_of(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object; OpenAI: a function without parameters takes none. Raises
    RequestError for parameters of another type: what followed them could not be read as a call."""
    if parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if (kind := parameters.get("type", "object")) != "object":
        raise RequestError(
            f'tools: parameters of {name} are of the type "object", as arguments are, not {f"{kind}"[:50]!r}',
            param="tools",
            code="invalid_value",
        )
    return {"type": "object", **parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What stands around names and arguments. `%` stands for the name in it, `"%"` for the name as JSON has it."""

    first: str = ""  # before the first call
    before: str = '{"name": "%", "arguments": '  # the arguments of each
    after: str = "}"
    between: str | None = ", "  # two calls; None: there is one at most
    last: str = ""  # after the last


_WRITTEN: dict[str, _Written] = {
    "hermes": _Written(before='<tool_call>↵{"name": "%", "arguments": ', after="}↵</tool_call>", between=_MAY_BREAK),
    "llama3": _Written(before='{"name": "%", "parameters": ', between="; "),
    "mistral": _Written(first="[TOOL_CALLS][", last="]"),
    "mistral_args": _Written(before="[TOOL_CALLS]%[ARGS]", after="", between=""),
    "deepseek": _Written(
        first="<｜tool▁calls▁begin｜>",
        before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>%\n```json\n",
        after="\n```<｜tool▁call▁end｜>",
        between="\n",
        last="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": _Written(
        first="<｜tool▁calls▁begin｜>",
        before="<｜tool▁call▁begin｜>%<｜tool▁sep｜>",
        after="<｜tool▁call▁end｜>",
        between="",
        last="<｜tool▁calls▁end｜>",
    ),
    "phi4": _Written(first="<|tool_call|>[", last="]<|/tool_call|>"),
    "glm4": _Written(before="%\n", after="", between=None),
    HARMONY: _Written(
        before="<|channel|>commentary to=functions.% <|constrain|>json<|message|>", after="", between=None
    ),
}


def call_grammar(rules: CallRules, form: str, tokenizer: Tokenizer) -> GrammarSpec:
    """Calls are written as models of this form are taught to. Raises UnsupportedError where the grammar of the form is
    not known, or cannot say this."""
    written = _WRITTEN.get(form)
    if written is None:
        raise UnsupportedError(
            f"tools are read in this model's form of calls ({form}), but cannot be forced, strict, or limited to one "
            f'call in it: leave tool_choice at "auto", strict unset and parallel_tool_calls unset',
            param="tools",
        )
    rendered = _Rendered(rules, form, written, tokenizer)
    if rules.required:
        lines = ["start: calls", *rendered.calls()]
    elif rules.content is not None:
        lines = ["start: content | calls", *rendered.calls(), f"content: %json {_schema(rules.content)}"]
    else:
        lines = rendered.after_free_text()
    return GrammarSpec(kind=GrammarKind.LARK, text="\n".join(lines))


class _Rendered:
    def __init__(self, rules: CallRules, form: str, written: _Written, tokenizer: Tokenizer) -> None:
        self._rules = rules
        self._form = form
        self._written = written
        self._tokenizer = tokenizer
        self._tags = HARMONY_TAGS if form == HARMONY else CALL_FORMS[form].tags

    def calls(self, *, without: str = "") -> list[str]:
        """The rule `calls` and those that it needs. `without`: what of the first call has been written already."""
        written, many = self._written, self._rules.many and self._written.between is not None
        more = [self._text(written.between or ""), "call"] if many else []
        line = ["calls: first", f"({' '.join(filter(None, more))})*" if more else "", self._text(written.last)]
        rules = [
            " ".join(filter(None, line)),
            f"first: {' | '.join(self._call(tool, written.first, without) for tool in self._rules.tools)}",
        ]
        if more:
            rules.append(f"call: {' | '.join(self._call(tool) for tool in self._rules.tools)}")
        return rules

    def after_free_text(self) -> list[str]:
        """Text that is no call, or text and then calls: what opens these ends it wherever it comes."""
        opening = "" if self._form == HARMONY else CALL_FORMS[self._form].opening
        begins = (self._written.first + self._written.before).startswith(opening)
        if not opening or not begins:
            return self._bare_or_text()
        if self._text(opening).startswith("<["):  # no text matches a control token
            return ["start: TEXT | TEXT calls", "TEXT: /(?s:.*)/", *self.calls()]
        pattern = re.escape(opening).replace("/", r"\/")
        return [
            "start: TEXT | head calls",
            f"head[lazy]: /(?s:.*){pattern}/",
            f"TEXT: /(?s:.*)/ & ~/(?s:.*{pattern}.*)/",
            *self.calls(without=opening),
        ]

    def _bare_or_text(self) -> list[str]:
        """Calls that no tag opens are the whole answer, and told from text by its first character."""
        bare = "" if self._form == HARMONY else CALL_FORMS[self._form].bare
        if not bare:
            raise UnsupportedError(
                f"in this model's form of calls ({self._form}) tools cannot be strict, or limited to one call, where "
                'the answer may also be text: force a call by tool_choice "required"',
                param="tools",
            )
        return ["start: TEXT | calls", f"TEXT: /([^{re.escape(bare)}\\s](?s:.*))?/", *self.calls()]

    def _call(self, tool: CallableTool, first: str = "", without: str = "") -> str:
        written = self._written
        before = (first + written.before).replace('"%"', json.dumps(tool.name)).replace("%", tool.name)
        texts = self._text(before.removeprefix(without)), f"%json {_schema(tool.arguments)}", self._text(written.after)
        return " ".join(filter(None, texts))

    def _text(self, text: str) -> str:
        """Lark for a text in which tags may stand."""
        marks = "|".join(re.escape(mark) for mark in (*sorted(self._tags, key=len, reverse=True), _MAY_BREAK))
        return " ".join(self._literal(piece) for piece in re.split(f"({marks})", text) if piece)

    def _literal(self, piece: str) -> str:
        """A control token by its id, which no text matches; anything else as it is written."""
        if piece == _MAY_BREAK:
            return '"\\n"?'
        if piece in self._tags:
            ids = self._tokenizer.encode(piece, add_special_tokens=False)
            if len(ids) == 1 and self._tokenizer.is_special(ids[0]):
                return f"<[{ids[0]}]>"
        return json.dumps(piece)


def _schema(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": _JSON_SPACE}})

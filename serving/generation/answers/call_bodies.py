"""What stands inside a call, read: (name, arguments) of each, or None where it is no call.

Nothing that a model writes is run: Python's syntax is parsed, and its literals are taken from the tree.
"""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Schemas = Mapping[str, Mapping[str, Any]]  # by the tool's name, the JSON schema of its arguments
Calls = list[tuple[str, dict[str, Any]]] | None

_LONGEST_SOURCE = 65_536  # characters of Python's syntax; its parser recurses
_WORDS = {"true": True, "false": False, "null": None}
_NO_TEXT = (("null", type(None)), ("object", dict), ("array", list))
_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(?P<head>.*?)<｜tool▁sep｜>(?P<rest>.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCE = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=(?P<name>[^>\n]+)>(?P<rest>.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>\s*", re.DOTALL)
_PAIR = re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def json_call(body: str, schemas: Schemas) -> Calls:
    """{"name": ..., "arguments": {...}}"""
    return _named([json_of(body)])


def json_array(body: str, schemas: Schemas) -> Calls:
    """[{"name": ..., "arguments": {...}}, ...]"""
    parsed = json_of(body)
    return _named(parsed) if isinstance(parsed, list) else None


def json_sequence(body: str, schemas: Schemas) -> Calls:
    """{"name": ..., "parameters": {...}}, and more of them after semicolons."""
    found: list[Any] = []
    rest = body.strip()
    while rest:
        try:
            parsed, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        found.append(parsed)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return _named(found)


def name_and_json(body: str, schemas: Schemas) -> Calls:
    """The name on a line of its own, then the arguments."""
    name, _, arguments = body.strip().partition("\n")
    parsed = json_of(arguments)
    return [(name.strip(), parsed)] if isinstance(parsed, dict) and name.strip() in schemas else None


def mistral(body: str, schemas: Schemas) -> Calls:
    """An array of calls, or with newer tokenizers name[ARGS]{...}, and more of them after [TOOL_CALLS]."""
    if "[ARGS]" not in body:
        return json_array(body, schemas)
    found: list[tuple[str, dict[str, Any]]] = []
    for one in body.split("[TOOL_CALLS]"):
        head, _, arguments = one.partition("[ARGS]")
        name, parsed = head.partition("[CALL_ID]")[0].strip(), json_of(arguments)
        if not name or not isinstance(parsed, dict):
            return None
        found.append((name, parsed))
    return found


def deepseek(body: str, schemas: Schemas) -> Calls:
    """V3 and R1: function, separator, name, and the arguments between fences. V3.1: name, separator, arguments."""
    found: list[tuple[str, dict[str, Any]]] = []
    if _DEEPSEEK.sub("", body).strip():
        return None  # a call that was cut off, or something else: it would be lost
    for match in _DEEPSEEK.finditer(body):
        fenced = _FENCE.fullmatch(match["rest"].strip())
        name, arguments = (fenced["name"], fenced["arguments"]) if fenced else (match["head"], match["rest"])
        parsed = json_of(arguments)
        if not isinstance(parsed, dict):
            return None
        found.append((name.strip(), parsed))
    return found or None


def qwen_xml(body: str, schemas: Schemas) -> Calls:
    """<function=name> <parameter=key> value </parameter> ... </function>"""
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return None
    name = function["name"].strip()
    return _of_texts(name, _matches(_PARAMETER, function["rest"]), schemas)


def glm_xml(body: str, schemas: Schemas) -> Calls:
    """name, then <arg_key>key</arg_key> <arg_value>value</arg_value> ..."""
    head, mark, rest = body.partition("<arg_key>")
    return _of_texts(head.strip(), _matches(_PAIR, mark + rest), schemas)


def pythonic(body: str, schemas: Schemas) -> Calls:
    """[f(a=1), g(b="x")], or a call on each line; arguments are literals."""
    source = body.strip()
    if not source or len(source) > _LONGEST_SOURCE:
        return None
    if not source.startswith("["):
        source = f"[{','.join(line for line in source.splitlines() if line.strip())}]"
    try:
        tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_python_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser's own limits
        return None


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """Raises ValueError for what is no call of literals by their names."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if len(arguments) != len(node.keywords):
        raise ValueError("an argument without a name, or two of one name")
    return ast.unparse(node.func), arguments


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {str(_literal(_present(key))): _literal(value) for key, value in zip(keys, values, strict=True)}
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)  # neither bytes nor sets nor complex numbers, nor what is too large for one
    return value


def _present(key: ast.expr | None) -> ast.expr:
    if key is None:
        raise ValueError("a dictionary that is unpacked")
    return key


def json_of(text: str) -> Any:
    """None where it is no JSON. Python's own reader takes more: what stands for no number could not be sent again."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _named(found: Sequence[Any]) -> Calls:
    calls: list[tuple[str, dict[str, Any]]] = []
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return None
        arguments = one.get("arguments", one.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        calls.append((one["name"], arguments))
    return calls or None


def _matches(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]] | None:
    """(key, value) of matches that fill the text; None where something else stands there."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text.rstrip()):
        match = pattern.match(text, at)
        if match is None:
            return None
        found.append((match["key"].strip(), match["value"]))
        at = match.end()
    return found


def _of_texts(name: str, pairs: list[tuple[str, str]] | None, schemas: Schemas) -> Calls:
    """Values are written without quotes: a schema that asks for a string gets the text, any other what JSON reads."""
    if pairs is None or name not in schemas:
        return None
    members = schemas[name].get("properties", {})
    return [(name, {key: _typed(value, members.get(key, {})) for key, value in pairs})]


def _typed(text: str, schema: Any) -> Any:
    kinds = _kinds(schema)
    try:
        value = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        value = _WORDS.get(text.strip().lower(), text)
    # A number or a word that may be a string is one: a postcode stays as it was written.
    if "string" in kinds and not any(isinstance(value, form) and kind in kinds for kind, form in _NO_TEXT):
        return text
    return value


def _kinds(schema: Any) -> set[str]:
    """The types that a schema and its alternatives name."""
    found: set[str] = set()
    alternatives = [schema]
    while alternatives:
        one = alternatives.pop()
        if not isinstance(one, dict):
            continue
        kind, values = one.get("type"), one.get("enum")
        found |= {name for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str)}
        if kind is None and any(isinstance(value, str) for value in (*_list(values), one.get("const"))):
            found.add("string")
        alternatives += [*_list(one.get("anyOf")), *_list(one.get("oneOf"))]
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

"""Bodies that are wrong in one place, drawn from a seed: valid requests with a field's type, size, bound, name, nesting
or encoding broken."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.serving.api.conftest import chat_body, text_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True, kw_only=True)
class Malformed:
    kind: str
    path: str
    content: bytes
    names_param: bool  # a field is at fault, so the error must name one


VALID: dict[str, dict[str, Any]] = {
    CHAT: chat_body(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "4"},
        ],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        tool_choice="auto",
        stream=False,
        n=1,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias={"5": 1.5},
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=5,
        stop=["\n"],
        stop_token_ids=[7],
        seed=3,
        user="u",
        metadata={"a": "b"},
        response_format={"type": "text"},
        chat_template_kwargs={"shout": False},
        cache_salt="s",
    ),
    TEXT: text_body(
        prompt=["one", "two"],
        stream=False,
        n=2,
        best_of=2,
        echo=True,
        logprobs=1,
        max_tokens=4,
        temperature=1,
        stop="x",
        bad_words=["zz"],
        allowed_token_ids=[1, 2, 3],
        min_tokens=1,
        logit_bias={"1": -1},
        add_special_tokens=True,
    ),
}
_WRONG_NUMBERS = [2**63, -(2**63) - 1, 2**200, 1e308, -1e300]
_WRONG_TYPES: list[Any] = [{"a": 1}, [[["x"]]], [{}], "\u0000", "NaN", [None], {"": {}}]


def malformed_bodies(count: int, seed: int) -> Iterator[Malformed]:
    draw = random.Random(seed)
    kinds = [_wrong_type, _wrong_number, _unknown_field, _missing_field, _raw_constant, _surrogate, _deep, _cut, _bytes]
    for i in range(count):
        yield kinds[i % len(kinds)](draw)


def _start(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A valid body; its label makes it another one than those before."""
    path = draw.choice([CHAT, TEXT])
    return path, {**copy.deepcopy(VALID[path]), "user": f"user {draw.randrange(10**6)}"}


def _dumped(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _wrong_type(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    free = ("chat_template_kwargs",)  # may hold anything, within bounds
    holder, key = draw.choice([place for place in _places(body) if place[1] not in free])
    wrong = draw.choice([value for value in _WRONG_TYPES if not _could_be(value, holder[key])])
    holder[key] = wrong
    return Malformed(kind="wrong type", path=path, content=_dumped(body), names_param=True)


def _wrong_number(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    numbers = [place for place in _places(body) if type(place[0][place[1]]) in (int, float)]
    holder, key = draw.choice(numbers)
    beyond = draw.choice([-1, 1]) * draw.randrange(2**31, 2**62)
    holder[key] = draw.choice(_WRONG_NUMBERS if key == "seed" else [beyond, *_WRONG_NUMBERS])
    return Malformed(kind="wrong number", path=path, content=_dumped(body), names_param=True)


def _unknown_field(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    name = "".join(draw.choices("abcdefgh_ .é[]$\"'", k=draw.randint(0, 40))) + "?"
    body[name] = draw.choice([1, None, "x", [1]])
    return Malformed(kind="unknown field", path=path, content=_dumped(body), names_param=True)


def _missing_field(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    if path == TEXT or draw.random() < 0.2:
        del body["prompt" if path == TEXT else "messages"]
    else:
        del draw.choice(body["messages"])["role"]
    return Malformed(kind="missing field", path=path, content=_dumped(body), names_param=True)


def _raw_constant(draw: random.Random) -> Malformed:
    """What json.dumps would not write: constants, huge literals, duplicates."""
    path, body = _start(draw)
    holder, key = draw.choice([place for place in _places(body) if isinstance(place[1], str)])
    holder[key] = "HERE"
    literal = draw.choice(
        ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "01", "+1", ".5", "0x10", "tru", "'x'", "1_000"]
    )
    content = _dumped(body).replace(b'"HERE"', literal.encode(), 1)
    return Malformed(kind="raw constant", path=path, content=content, names_param=False)


def _surrogate(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    texts = [place for place in _places(body) if isinstance(place[0][place[1]], str)]
    holder, key = draw.choice(texts)
    holder[key] = draw.choice(["\ud800", "a\udfffb", "\udc00\ud800", "ok \ud83d"])
    return Malformed(kind="surrogate", path=path, content=_dumped(body), names_param=True)


def _deep(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    depth = draw.choice([65, 200, 999, 5000, 50_000])
    start, end = draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
    body[draw.choice(["messages", "logit_bias", "chat_template_kwargs", "metadata", "prompt"])] = "HERE"
    content = _dumped(body).replace(b'"HERE"', start * depth + b"1" + end * depth)
    return Malformed(kind="deep", path=path, content=content, names_param=False)


def _cut(draw: random.Random) -> Malformed:
    path, body = _start(draw)
    content = _dumped(body)
    return Malformed(kind="cut", path=path, content=content[: draw.randrange(len(content) - 1)], names_param=False)


def _bytes(draw: random.Random) -> Malformed:
    """Another encoding, broken bytes, or something else altogether."""
    path, body = _start(draw)
    content = _dumped(body)
    at = draw.randrange(len(content))
    broken: list[Callable[[], bytes]] = [
        lambda: content.decode().encode("utf-16"),
        lambda: content.decode().encode("utf-32"),
        lambda: content[:at] + bytes([draw.randrange(128, 256)]) + content[at:],
        lambda: content[:at] + b"\x00" + content[at:],
        lambda: b"[" + content + b"]",
        lambda: content + content,
        lambda: draw.randbytes(draw.randint(1, 300)),
        lambda: b"",
        lambda: b" " * 70_000,
        lambda: b'"' + b"a" * 60_000 + b'"',
    ]
    return Malformed(kind="bytes", path=path, content=draw.choice(broken)(), names_param=False)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every member at any depth, but not inside what is the client's own."""
    found: list[tuple[Any, Any]] = []
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found.append((value, key))
        if key not in ("parameters", "chat_template_kwargs"):
            found += _places(member)
    return found


def _could_be(wrong: Any, right: Any) -> bool:
    """Whether a value would be no mistake in another's place: any text is text, and one text may stand for several."""
    return type(wrong) is type(right) or (isinstance(wrong, str) and isinstance(right, list))

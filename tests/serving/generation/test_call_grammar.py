"""What the grammar of calls allows is what the parser of calls reads."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engine.grammars import Grammars
from serving.engine.request import GrammarKind, GrammarSpec
from serving.errors import UnsupportedError
from serving.generation.answer_grammar import answer_grammar
from serving.generation.call_grammar import CallableTool, CallRules, call_grammar
from serving.generation.chat_format import ChatFormat
from serving.generation.grammar_vocabulary import vocabulary_of
from serving.generation.request import TextRequest
from serving.generation.tokenizer import Tokenizer, load_tokenizer

TOOLS = (
    CallableTool(
        name="look",
        arguments={
            "type": "object",
            "properties": {"q": {"enum": ["x", "::="]}},
            "required": ["q"],
            "additionalProperties": False,
        },
    ),
    CallableTool(name="any", arguments={"type": "object"}),
)


DEMO = Path(__file__).parents[3] / "configs" / "checkpoints" / "demo"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(DEMO)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    grammars = Grammars(lambda: vocabulary_of(tokenizer), tokenizer.vocab_size)
    yield grammars
    grammars.close()


def call(name: str, arguments: Any, space: str = "") -> str:
    return f"<tool_call>{space}{json.dumps({'name': name, 'arguments': arguments})}{space}</tool_call>"


LOOK, ANY = call("look", {"q": "::="}), call("any", {"a": [1, None]}, "\n")
CASES = [
    (CallRules(tools=TOOLS, required=True, many=True), [LOOK, f"{LOOK}\n{ANY}"], ["text", f"a {LOOK}", ""]),
    (CallRules(tools=TOOLS, required=True, many=False), [LOOK, ANY], [LOOK + LOOK]),
    (
        CallRules(tools=TOOLS, required=False, many=True),
        ["text", "", LOOK, f"text\n{LOOK}{ANY}", "<tool_", "a < b"],
        ["<tool_call>", f"{LOOK} text", call("look", {"q": "y"}), call("other", {})],
    ),
    (CallRules(tools=TOOLS, required=False, many=False), ["text", f"text {LOOK}"], [f"{LOOK}{LOOK}"]),
    (
        CallRules(tools=TOOLS, required=False, many=True, content={"enum": ["only"]}),
        ['"only"', LOOK, LOOK + ANY],
        ["text", f'"only"{LOOK}'],
    ),
]


@pytest.mark.parametrize(("rules", "right", "wrong"), CASES)
def test_calls_and_nothing_else(
    rules: CallRules, right: list[str], wrong: list[str], grammars: Grammars, tokenizer: Tokenizer
) -> None:
    spec = call_grammar(rules, tokenizer)
    for text, allowed in [(text, True) for text in right] + [(text, False) for text in wrong]:
        constraint = asyncio.run(grammars.constraint(spec))
        constraint.follow(vocabulary_of(tokenizer).spell(text))
        matcher = constraint.matcher
        assert (matcher is not None and matcher.is_accepting()) is allowed, text


REASONS = (
    "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
SPEC = GrammarSpec(kind=GrammarKind.REGEX, text="a")


def request(**fields: Any) -> TextRequest:
    return TextRequest(request_id="r", messages=[{"role": "user", "content": "hi"}], grammar=SPEC, **fields)


class Thinking:
    """A tokenizer of a model whose reasoning ends with one token."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [77] if text == "</think>" else list(text.encode())


def test_a_grammar_begins_after_the_reasoning_where_the_model_reasons(tokenizer: Tokenizer) -> None:
    reasoning = ChatFormat({"default": REASONS}, {}, source="test")
    plain = ChatFormat({"default": "{{ messages[0].content }}"}, {}, source="test")
    thinking: Any = Thinking()
    for chat_format, prompt, starts_after in (
        (plain, "hi", ()),
        (plain, "hi<think>\n", (77,)),
        (reasoning, "hi", (77,)),
        (reasoning, "hi<think>\n\n</think>\n\n", ()),
    ):
        spec = answer_grammar(request(), prompt, chat_format, thinking)
        assert spec is not None
        assert spec.starts_after == starts_after
    free = request(calls=CallRules(tools=TOOLS, required=False, many=True))
    assert answer_grammar(free, "hi", reasoning, thinking).starts_after == ()  # type: ignore[union-attr]
    with pytest.raises(UnsupportedError, match="reasons first"):
        answer_grammar(request(), "hi", reasoning, tokenizer)
    reasoning.close()
    plain.close()

"""What the grammar of calls allows is what the parser of calls reads."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.engine.grammars import Grammars
from serving.engine.request import GrammarKind, GrammarSpec
from serving.errors import UnsupportedError
from serving.generation.answer_grammar import answer_grammar
from serving.generation.answers.call_forms import CALL_FORMS
from serving.generation.answers.call_parser import CallParser
from serving.generation.answers.parts import ParsedText
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
    spec = call_grammar(rules, "hermes", tokenizer)
    for text, allowed in [(text, True) for text in right] + [(text, False) for text in wrong]:
        assert accepts(grammars, tokenizer, spec, text) is allowed, text


LOOKED, ANYTHING = '{"q": "::="}', '{"a": [1, null]}'
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
DEEPSEEK = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
ARRAY = f'[{{"name": "look", "arguments": {LOOKED}}}, {{"name": "any", "arguments": {ANYTHING}}}]'
WRITTEN = {  # both calls
    "hermes": f"{LOOK}\n{ANY}",
    "llama3": f'{{"name": "look", "parameters": {LOOKED}}}; {{"name": "any", "parameters": {ANYTHING}}}',
    "mistral": f"[TOOL_CALLS]{ARRAY}",
    "mistral_args": f"[TOOL_CALLS]look[ARGS]{LOOKED}[TOOL_CALLS]any[ARGS]{ANYTHING}",
    "deepseek": DEEPSEEK.format(V3.format("look", LOOKED) + "\n" + V3.format("any", ANYTHING)),
    "deepseek_v31": DEEPSEEK.format(V31.format("look", LOOKED) + V31.format("any", ANYTHING)),
    "phi4": f"<|tool_call|>{ARRAY}<|/tool_call|>",
}
MODES = [{"required": True}, {"required": False}, {"required": False, "content": {"enum": ["only"]}}]


@pytest.mark.parametrize("form", WRITTEN)
def test_in_each_form_what_the_grammar_allows_is_what_is_read(
    form: str, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    text = WRITTEN[form]
    parser = CallParser(CALL_FORMS[form], {tool.name: tool.arguments for tool in TOOLS})
    calls = ParsedText.of([*parser.feed(text), *parser.finish()]).tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("look", {"q": "::="}),
        ("any", {"a": [1, None]}),
    ]
    for mode in MODES:
        spec = call_grammar(CallRules(tools=TOOLS, many=True, **mode), form, tokenizer)
        assert accepts(grammars, tokenizer, spec, text)
        assert not accepts(grammars, tokenizer, spec, text.replace("::=", "y"))
        one = call_grammar(CallRules(tools=TOOLS, many=False, **mode), form, tokenizer)
        assert not accepts(grammars, tokenizer, one, text)
        assert accepts(grammars, tokenizer, spec, "text") is (mode == {"required": False})


def test_forms_that_write_one_call_at_most(grammars: Grammars, tokenizer: Tokenizer) -> None:
    rules = CallRules(tools=TOOLS, required=True, many=True)
    harmony = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"
    for form, written in (("glm4", "{}\n{}"), ("harmony", harmony)):
        spec = call_grammar(rules, form, tokenizer)
        assert accepts(grammars, tokenizer, spec, written.format("look", LOOKED))
        assert not accepts(grammars, tokenizer, spec, written.format("look", ANYTHING))
        with pytest.raises(UnsupportedError, match='"required"'):
            call_grammar(CallRules(tools=TOOLS, required=False, many=True), form, tokenizer)


@pytest.mark.parametrize("form", ["llama4", "olmo3", "qwen_xml", "glm_xml"])
def test_a_form_without_a_grammar_is_refused_by_name(form: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedError, match=form):
        call_grammar(CallRules(tools=TOOLS, required=True, many=True), form, tokenizer)


def accepts(grammars: Grammars, tokenizer: Tokenizer, spec: GrammarSpec, text: str) -> bool:
    constraint = asyncio.run(grammars.constraint(spec))
    constraint.follow(vocabulary_of(tokenizer).spell(text))
    matcher = constraint.matcher
    return matcher is not None and matcher.is_accepting()


REASONS = (
    "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
SPEC = GrammarSpec(kind=GrammarKind.REGEX, text="a")


def request(**fields: Any) -> TextRequest:
    return TextRequest(request_id="r", messages=[{"role": "user", "content": "hi"}], grammar=SPEC, **fields)


class Thinking:
    """A tokenizer of a model whose reasoning ends with one token."""

    eos_token_ids = (0,)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [77] if text == "</think>" else list(text.encode())


def test_a_grammar_begins_after_the_reasoning_where_the_model_reasons(tokenizer: Tokenizer) -> None:
    reasoning = ChatFormat({"default": REASONS}, {}, source="test")
    plain = ChatFormat({"default": "{{ messages[0].content }}"}, {}, source="test")
    opened = ChatFormat({"default": "{{ messages[0].content }}<think>\n"}, {}, source="test")
    thinking: Any = Thinking()
    for chat_format, prompt, starts_after in (
        (plain, "hi", ()),
        (plain, "hi<think>\n", ()),
        (opened, "hi<think>\n", (77,)),
        (opened, "hi", ()),
        (reasoning, "hi", (77,)),
        (reasoning, "hi<think>\n\n</think>\n\n", ()),
    ):
        spec = answer_grammar(request(), chat_format.answer_form(prompt, with_tools=False), chat_format, thinking)
        assert spec is not None
        assert spec.starts_after == starts_after
    free = request(calls=CallRules(tools=TOOLS, required=False, many=True))
    form = replace(reasoning.answer_form("hi", with_tools=False), calls="hermes")
    assert answer_grammar(free, form, reasoning, thinking).starts_after == ()  # type: ignore[union-attr]
    with pytest.raises(UnsupportedError, match="reasons first"):
        answer_grammar(request(), form, reasoning, tokenizer)
    for chat_format in (reasoning, plain, opened):
        chat_format.close()


def test_in_harmony_content_begins_on_its_channel_and_a_call_after_the_reasoning(tokenizer: Tokenizer) -> None:
    harmony = ChatFormat({"default": "{{ messages[0].content }}<|channel|>"}, {}, source="test")
    form = harmony.answer_form("hi", with_tools=True)
    forced = request(calls=CallRules(tools=TOOLS, required=True, many=False))
    for asked, after in ((request(), "<|channel|>final<|message|>"), (forced, "<|start|>assistant")):
        spec = answer_grammar(asked, form, harmony, tokenizer)
        assert spec is not None
        assert spec.starts_after == tuple(tokenizer.encode(after, add_special_tokens=False))
    harmony.close()


def test_a_grammar_is_refused_where_no_token_could_end_the_answer_and_it_is_said_why(tokenizer: Tokenizer) -> None:
    """The engine, which cannot tell, would refuse `ignore_eos`, which nobody sent."""
    plain = ChatFormat({"default": "{{ messages[0].content }}"}, {}, source="test")
    form = plain.answer_form("hi", with_tools=False)
    endless: Any = Thinking()
    endless.eos_token_ids = ()
    assert answer_grammar(request(), form, plain, tokenizer) == SPEC
    with pytest.raises(UnsupportedError, match="names no token that ends a text") as caught:
        answer_grammar(request(), form, plain, endless)
    assert caught.value.param == "grammar"
    plain.close()

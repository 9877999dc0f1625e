"""The variables by which templates of each kind are told how much to reason."""

from collections.abc import Mapping
from typing import Any

import pytest

from serving.errors import CheckpointError, RequestError, UnsupportedError
from serving.generation.chat_format import ChatFormat
from serving.settings.reasoning_switch import EFFORTS, Effort, ReasoningSwitchConfig

# What templates of these families do with their variables, and nothing else of them.
GPT_OSS = (
    "<|channel|>{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}"
    "Reasoning: {{ reasoning_effort }}"
)
QWEN3 = "{{ '<think></think>' if enable_thinking is defined and enable_thinking is false }}"
DEEPSEEK = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ '<think>' if thinking else '</think>' }}"
)
BOTH = "<think>{{ enable_thinking is defined and enable_thinking }}/{{ reasoning_effort | default('-') }}"
OTHER = "<think>{{ mode | default('-') }}"
ALWAYS = "<think>"
NEVER = "hi"
MESSAGES = [{"role": "user", "content": "hi"}]


def rendered(
    template: str,
    effort: Effort | None,
    given: Mapping[str, Any] | None = None,
    switch: ReasoningSwitchConfig | None = None,
) -> str:
    made = ChatFormat({"default": template}, {}, source="testing", switch=switch)
    try:
        return made.render(MESSAGES, variables=given, reasoning_effort=effort)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("template", "effort", "said"),
    [
        (GPT_OSS, "high", "<|channel|>Reasoning: high"),
        (GPT_OSS, None, "<|channel|>Reasoning: medium"),
        (QWEN3, "none", "<think></think>"),
        (QWEN3, "minimal", "<think></think>"),
        (QWEN3, "low", ""),
        (DEEPSEEK, "xhigh", "<think>"),
        (DEEPSEEK, "none", "</think>"),
        (BOTH, "low", "<think>True/low"),
        (BOTH, "none", "<think>False/-"),
        (NEVER, "none", "hi"),
    ],
)
def test_a_template_gets_the_variables_that_it_reads(template: str, effort: Effort | None, said: str) -> None:
    assert rendered(template, effort) == said


@pytest.mark.parametrize(
    ("template", "effort", "right"),
    [
        (GPT_OSS, "none", "takes low or medium or high"),
        (GPT_OSS, "xhigh", "takes low or medium or high"),
        (ALWAYS, "none", "has no switch for its reasoning: leave it out"),
        (ALWAYS, "high", "has no switch"),
        (NEVER, "low", "takes none"),
    ],
)
def test_an_effort_that_a_template_has_no_words_for_is_refused(template: str, effort: Effort, right: str) -> None:
    with pytest.raises(UnsupportedError, match=right) as caught:
        rendered(template, effort)
    assert caught.value.param == "reasoning_effort"


def test_a_variable_that_says_otherwise_is_refused_and_one_that_agrees_is_not() -> None:
    assert rendered(QWEN3, "none", {"enable_thinking": False}) == "<think></think>"
    assert rendered(BOTH, "low", {"reasoning_effort": "low"}) == "<think>True/low"
    with pytest.raises(RequestError, match="means enable_thinking = False here") as caught:
        rendered(QWEN3, "none", {"enable_thinking": True})
    assert caught.value.param == "reasoning_effort"


def test_a_deployment_names_the_variable_and_its_values() -> None:
    words = ReasoningSwitchConfig(variable="mode", values={"none": "chat", "high": "reason"})
    assert rendered(OTHER, "none", switch=words) == "<think>chat"
    assert rendered(OTHER, "high", switch=words) == "<think>reason"
    assert rendered(OTHER, None, switch=words) == "<think>-"
    with pytest.raises(UnsupportedError, match="takes none or high"):
        rendered(OTHER, "low", switch=words)
    flag = ReasoningSwitchConfig(variable="mode")
    assert [rendered(OTHER, effort, switch=flag) for effort in EFFORTS] == ["<think>False"] * 2 + ["<think>True"] * 4
    with pytest.raises(CheckpointError, match="does not read mode"):
        rendered(QWEN3, None, switch=flag)


def test_a_template_for_tools_may_lack_the_switch_that_the_other_has() -> None:
    made = ChatFormat(
        {"default": OTHER, "tool_use": "<think>{{ tools }}"},
        {},
        source="testing",
        switch=ReasoningSwitchConfig(variable="mode"),
    )
    with pytest.raises(UnsupportedError, match="has no switch"):
        made.render(MESSAGES, [{"type": "function", "function": {"name": "f"}}], reasoning_effort="low")
    assert made.render(MESSAGES, reasoning_effort="low") == "<think>True"
    made.close()


@pytest.mark.parametrize(
    ("template", "effort"),
    [(QWEN3, "none"), (GPT_OSS, "low"), (NEVER, "none"), (ALWAYS, None)],
    ids=["a flag", "levels alone", "no reasoning", "no switch"],
)
def test_the_least_effort_is_one_that_the_template_takes(template: str, effort: Effort | None) -> None:
    made = ChatFormat({"default": template}, {}, source="testing")
    assert made.least_effort() == effort
    made.close()
    rendered(template, effort)

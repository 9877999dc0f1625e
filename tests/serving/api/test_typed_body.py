from typing import Any

import msgspec
import pytest

from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.api.engine_routes import SleepBody
from serving.api.messages.body import MessagesBody
from serving.api.responses.body import ResponsesBody
from serving.api.tokenize_body import TokenizeBody
from serving.api.typed_body import Body, typed
from serving.errors import RequestError


class _A(msgspec.Struct, tag="a"):
    pass


class _B(msgspec.Struct, tag="b"):
    pass


class TaggedBody(Body, kw_only=True):
    items: list[_A | _B]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def _refusal(fields: dict[str, Any], kind: type[Body] = ChatBody, base: dict[str, Any] = CHAT) -> RequestError:
    with pytest.raises(RequestError) as caught:
        typed(kind, {**base, **fields})
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": "1"}, "temperature", 'must be a number or null, not "1"'),
        ({"n": True}, "n", "must be an integer or null, not true"),
        ({"n": 1.5}, "n", "must be an integer or null, not 1.5"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"nonsense": 1}, "nonsense", "not a parameter of this endpoint"),
        ({"two words": 1}, '["two words"]', "not a parameter"),
        ({"stop": ["a", 1]}, "stop[1]", "must be a string, not 1"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "each key must be an integer"),
        ({"logit_bias": {"5": "x"}}, "logit_bias", "each value must be a number"),
        ({"top_logprobs": 21}, "top_logprobs", "<= 20, not 21"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", ">= 1, not 0"),
        ({"cache_salt": ""}, "cache_salt", "of length >= 1"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "not a known field"),
        ({"messages": []}, "messages", "of length >= 1, not an array of 0"),
        ({"messages": "hi"}, "messages", "must be an array"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages[0].role", '"system" or "developer" or "user"'),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content[0].type",
            'must be "text", not "image_url"',
        ),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio", "must be null"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id", "is required"),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type", 'must be "function"'),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "matches"),
        ({"user": "x" * 200, "seed": "y" * 200}, "seed", "yyy..."),
    ],
)
def test_an_error_names_the_field_what_it_is_and_what_would_be_right(
    fields: dict[str, Any], param: str, says: str
) -> None:
    error = _refusal(fields)
    assert error.param == param
    assert says in error.message
    assert error.message.startswith(param)
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("kind", "fields", "param", "says"),
    [
        (SleepBody, {"weights": "disk"}, "weights", 'must be "host" or "none", not "disk"'),
        (
            ResponsesBody,
            {"input": [{"type": "message", "role": "user", "content": "hi", "status": "done"}]},
            "input[0].status",
            'must be "calling" or "completed" or ',
        ),
        (MessagesBody, {"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl", 'not "2h"'),
        (
            MessagesBody,
            {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]},
            "system[0].cache_control.ttl",
            'not "2h"',
        ),
        (TaggedBody, {"items": [{"type": "c"}]}, "items[0].type", 'must be "a" or "b", not "c"'),
    ],
)
def test_a_word_that_is_none_of_a_types_is_answered_with_those_that_are(
    kind: type[Body], fields: dict[str, Any], param: str, says: str
) -> None:
    error = _refusal(fields, kind, {})
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody, TokenizeBody])
def test_every_word_list_belongs_to_a_field_that_can_be_wrong(kind: type[Body]) -> None:
    """Each path is reached by an error, so that none is missing or stale."""
    base = {"prompt": "hi"} if kind is CompletionBody else CHAT
    for path in kind.words:
        assert path.split("[]")[0].split(".")[0] in kind.__struct_fields__
    assert _refusal({"model": 1}, kind, base).param == "model"


def test_null_is_the_same_as_leaving_out() -> None:
    names = [name for name in ChatBody.__struct_fields__ if name != "messages"]
    assert typed(ChatBody, {**CHAT, **dict.fromkeys(names)}) == typed(ChatBody, CHAT)


def test_a_whole_number_will_do_for_a_float_but_no_float_for_an_integer() -> None:
    assert typed(ChatBody, {**CHAT, "temperature": 1}).temperature == 1.0
    assert _refusal({"max_tokens": 1.0}).param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"tool_choice": "auto"}, "tool_choice"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], param: str) -> None:
    body = typed(ChatBody, {**CHAT, **fields})
    with pytest.raises(RequestError) as caught:
        body.check_together()
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_a_prompt_is_text_or_ids_one_or_several(prompt: Any, read: list[Any]) -> None:
    assert typed(CompletionBody, {"prompt": prompt}).prompts == read


@pytest.mark.parametrize("prompt", [["a", 1], [1, "a"], [[1], 2], [1, [2]], [[1], "a"], ["a"] * 65])
def test_prompts_of_mixed_kinds_or_too_many_are_refused(prompt: Any) -> None:
    body = typed(CompletionBody, {"prompt": prompt})
    with pytest.raises(RequestError) as caught:
        _ = body.prompts
    assert (caught.value.param or "").startswith("prompt")


def test_an_assistant_message_comes_back_as_the_sdk_dumps_it() -> None:
    dumped = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    answer = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}]}
    typed(ChatBody, {"messages": [*CHAT["messages"], dumped, answer]}).check_together()

"""What a generation may be asked for, and the message that asks for it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from serving.client import schema

# The message has these as JSON.
_JSON = ("chat_template_kwargs", "tools", "tool_choice", "response_format", "structured_outputs")


class Message(TypedDict, total=False):
    """Of a chat, in OpenAI's words."""

    role: str  # system, developer, user, assistant, tool
    content: str | None
    name: str
    reasoning_content: str
    refusal: str | None
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str


class Parameters(TypedDict, total=False):
    """Names, ranges and defaults are those of the HTTP API (docs/api.md). What is left out takes the default."""

    model: str
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    seed: int
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int  # 0: of each token; k: and of the k likeliest
    prompt_logprobs: int
    return_token_ids: bool
    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]
    cache_salt: str
    priority: str  # interactive, standard, batch
    reasoning_effort: str  # none, minimal, low, medium, high, xhigh
    include_reasoning: bool  # False: what the model thinks before it answers is left out
    fallback: bool  # False: no other model may answer in place of this one
    timeout_seconds: float  # the text so far is the answer then; a call's `timeout` ends it without one


def prompt_request(prompt: str | Sequence[int], parameters: Parameters) -> Any:
    """Raises TypeError or ValueError for a parameter that is not known, or is of another type."""
    if isinstance(prompt, str):
        return schema.GenerateRequest(prompt=prompt, **_fields(parameters))
    return schema.GenerateRequest(prompt_token_ids={"ids": prompt}, **_fields(parameters))


def chat_request(messages: Sequence[Message], parameters: Parameters) -> Any:
    """Raises as `prompt_request`."""
    return schema.GenerateRequest(messages={"messages": list(map(_message, messages))}, **_fields(parameters))


def embed_request(
    texts: str | Sequence[str] | Sequence[Sequence[int]], model: str | None, dimensions: int | None
) -> Any:
    """Raises TypeError for texts of two kinds."""
    given = [texts] if isinstance(texts, str) else list(texts)
    named: dict[str, Any] = {"texts": given}
    if not all(isinstance(text, str) for text in given):
        named = {"token_ids": [{"ids": ids} for ids in given]}
    return schema.EmbedRequest(**named, model=model, dimensions=dimensions)


def _fields(parameters: Parameters) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
    unknown = given.keys() - Parameters.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no parameter {min(unknown)}")
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    if "priority" in given:
        given["priority"] = f"PRIORITY_{given['priority'].upper()}"
    for name in _JSON:
        if name in given:
            given[f"{name}_json"] = json.dumps(given.pop(name))
    return given


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {name: value for name, value in message.items() if value is not None}
    fields["role"] = f"ROLE_{str(fields.get('role', '')).upper()}"
    if "tool_calls" in fields:
        fields["tool_calls"] = [
            {"id": call["id"], "function": {name: call["function"][name] for name in ("name", "arguments")}}
            for call in fields["tool_calls"]
        ]
    return fields

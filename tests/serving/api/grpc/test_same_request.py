"""One request model: what HTTP, WebSocket and gRPC are asked in their own words is the same TextRequest below them."""

import dataclasses
import json
import random
from typing import Any

import grpc.aio
import pytest

from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.client import schema
from serving.client.parameters import Parameters, chat_request, prompt_request
from serving.generation.request import PreparedPrompt, TextRequest
from serving.observability.request_trace import RequestTrace
from tests.serving.api.conftest import Api, ApiMaker
from tests.serving.api.grpc.serving_grpc import channel_to, unary
from tests.serving.api.test_websocket import socket_to

EXAMPLES = 20
ONLY_HTTP = {
    "stream",  # a method of its own
    "stream_options",  # a stream always ends with its usage
    "durable",
    "echo",
    "best_of",
    "max_completion_tokens",  # max_tokens
    "top_logprobs",  # logprobs
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "guided_json",  # structured_outputs, which these were called before
    "guided_regex",
    "guided_choice",
    "guided_grammar",
}
INPUTS = {"prompt", "prompt_token_ids", "messages"}
ONLY_CHAT = {
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "include_reasoning",
    "reasoning_effort",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi", "name": "ann"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "4"},
    {"role": "developer", "content": "now answer"},
]


def drawn(draw: random.Random) -> dict[str, Any]:
    """A value for each parameter, as a client of the package writes it."""
    return {
        "model": None,
        "n": draw.randint(1, 3),
        "temperature": draw.uniform(0, 2),
        "top_p": draw.uniform(0.01, 1),
        "top_k": draw.randint(-1, 50),
        "min_p": draw.uniform(0, 1),
        "presence_penalty": draw.uniform(-2, 2),
        "frequency_penalty": draw.uniform(-2, 2),
        "repetition_penalty": draw.uniform(0.01, 3),
        "logit_bias": {draw.randrange(200): draw.uniform(-100, 100) for _ in range(draw.randint(1, 4))},
        "allowed_token_ids": draw.sample(range(200), 5),
        "bad_words": ["zz", "é"],
        "seed": draw.randint(-(2**63), 2**63 - 1),
        "max_tokens": draw.randint(2, 9),
        "min_tokens": draw.randint(0, 1),
        "stop": draw.sample(["x", "yy", "\n"], draw.randint(1, 3)),
        "stop_token_ids": draw.sample(range(200), 3),
        "include_stop_str_in_output": draw.random() < 0.5,
        "ignore_eos": draw.random() < 0.5,
        "skip_special_tokens": draw.random() < 0.5,
        "logprobs": draw.randint(0, 5),
        "prompt_logprobs": draw.randint(0, 5),
        "return_token_ids": draw.random() < 0.5,
        "add_special_tokens": draw.random() < 0.5,
        "add_generation_prompt": draw.random() < 0.5,
        "continue_final_message": False,
        "chat_template_kwargs": {"shout": draw.random() < 0.5},
        "reasoning_effort": draw.choice(["none", "low", "high"]),
        "include_reasoning": draw.random() < 0.5,
        "fallback": draw.random() < 0.5,
        "tools": [TOOL],
        "tool_choice": draw.choice(["auto", "none"]),
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "structured_outputs": {"regex": "[a-z]+"},
        "cache_salt": f"salt {draw.randrange(99)}",
        "priority": draw.choice(["interactive", "standard", "batch"]),
        "timeout_seconds": draw.uniform(100, 900),
    }


def some(draw: random.Random, *, chat: bool) -> dict[str, Any]:
    values = {name: value for name, value in drawn(draw).items() if value is not None}
    names = [name for name in values if chat or name not in ONLY_CHAT]
    chosen = set(draw.sample(names, draw.randint(0, len(names))))
    return {name: values[name] for name in names if name in chosen or (name == "tools" and "tool_choice" in chosen)}


def http_body(parameters: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    body = json.loads(json.dumps(parameters))
    if chat and "logprobs" in body:
        body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
    return body


def recording(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[TextRequest]:
    seen: list[TextRequest] = []
    generator = api.service.generator
    prepare = generator.prepare

    async def recorded(request: TextRequest, *traces: RequestTrace) -> PreparedPrompt:
        seen.append(dataclasses.replace(request, request_id=""))
        return await prepare(request, *traces)

    monkeypatch.setattr(generator, "prepare", recorded)
    return seen


@pytest.mark.parametrize("kind", ["messages", "prompt", "prompt_token_ids"])
async def test_the_same_parameters_are_the_same_request_in_every_protocol(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    api = make_api(make_api.says("hello"))
    seen = recording(api, monkeypatch)
    chat = kind == "messages"
    given: Any = {"messages": MESSAGES, "prompt": "some text", "prompt_token_ids": make_api.ids("ids")}[kind]
    path, event = ("/v1/chat/completions", "chat.completions") if chat else ("/v1/completions", "completions")
    draw = random.Random(f"parameters of {kind}")
    made = 0
    async with channel_to(api) as channel, socket_to(api) as socket:
        call = unary(channel, "Generate", schema.GenerateReply)
        for _ in range(EXAMPLES):
            parameters = some(draw, chat=chat)
            wanted: Parameters = parameters  # type: ignore[assignment]
            body = {"messages" if chat else "prompt": given, **http_body(parameters, chat=chat)}
            seen.clear()
            over_http = await api.post(path, body)
            await socket.ask("a", {**body, "stream": False}, event)
            over_socket = await socket.until_end("a")
            message = chat_request(given, wanted) if chat else prompt_request(given, wanted)
            try:
                await call(message)
                code = None
            except grpc.aio.AioRpcError as error:
                code = error.code()
            assert len(seen) in (0, 3)  # none: refused for what excludes each other, before a request is made
            assert all(request == seen[0] for request in seen)
            made += bool(seen)
            assert (over_http.status_code == 200) == (over_socket[-1]["type"] == "done") == (code is None)
    assert made > EXAMPLES // 2


def test_every_parameter_of_http_is_in_the_message_and_in_the_client() -> None:
    """A field that is added to a body and not to proto/weft/v1/generation.proto could not be asked for over gRPC."""
    fields = {name.removesuffix("_json") for name in schema.GenerateRequest.DESCRIPTOR.fields_by_name}
    bodies = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    assert fields - INPUTS == bodies - INPUTS - ONLY_HTTP
    assert set(Parameters.__annotations__) == fields - INPUTS
    assert drawn(random.Random(0)).keys() == fields - INPUTS

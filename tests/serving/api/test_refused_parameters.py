from collections.abc import Mapping
from typing import Any

import pytest

from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.api.typed_body import Refusal
from tests.serving.api.conftest import ApiMaker, Body, chat_body, text_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"

# What OpenAI's clients and vLLM's can send, and nothing here would come of. Written out, so that none falls out unseen.
BOTH = """guided_decoding_backend guided_whitespace_pattern kv_transfer_params length_penalty logits_processors
lora_request prompt_embeds request_id
return_tokens_as_token_ids service_tier spaces_between_special_tokens store truncate_prompt_tokens use_beam_search
vllm_xargs""".split()
CHAT_ONLY = """audio best_of chat_template documents echo function_call functions media_io_kwargs
mm_processor_kwargs modalities moderation prediction prompt_cache_options prompt_cache_retention
thinking_token_budget verbosity web_search_options""".split()
TEXT_ONLY = ["max_completion_tokens", "messages", "suffix", "tools"]


def _cases() -> list[tuple[str, str]]:
    chat = [(CHAT, name) for name in BOTH + CHAT_ONLY]
    return chat + [(TEXT, name) for name in BOTH + TEXT_ONLY]


def _refused(path: str) -> Mapping[str, Refusal]:
    return ChatBody.refused if path == CHAT else CompletionBody.refused


def _body(path: str, **fields: Any) -> Body:
    return chat_body(**fields) if path == CHAT else text_body(**fields)


@pytest.mark.parametrize(("path", "name"), _cases())
async def test_a_parameter_without_effect_is_refused_by_name(make_api: ApiMaker, path: str, name: str) -> None:
    reply = await make_api().post(path, _body(path, **{name: "something"}))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == name
    assert error["code"] == "unsupported"
    assert error["message"].startswith(f"{name} is not supported: ")
    assert "leave it out" in error["message"]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [(path, name, value) for path, name in _cases() for value in (None, *_refused(path)[name].neutral)],
)
async def test_a_value_that_asks_for_nothing_is_let_through(
    make_api: ApiMaker, path: str, name: str, value: object
) -> None:
    api = make_api(make_api.says("x"))
    assert (await api.post(path, _body(path, **{name: value}))).status_code == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_tables_here_and_there_agree(path: str) -> None:
    listed = {name for where, name in _cases() if where == path}
    known = set(ChatBody.__struct_fields__ if path == CHAT else CompletionBody.__struct_fields__)
    assert listed == set(_refused(path)) - known


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", -0.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"999999": 1}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("bad_words", [""]),
        ("max_tokens", 0),
        ("max_tokens", 5000),
        ("min_tokens", -1),
        ("stop", ["x"] * 17),
        ("stop", ""),
        ("stop_token_ids", [999999]),
        ("prompt_logprobs", 21),
        ("cache_salt", "x" * 1025),
        ("priority", "urgent"),
        ("priority", 0),
        ("timeout_seconds", 0),
        ("timeout_seconds", 86401),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_value_out_of_bounds_is_refused_by_name(
    make_api: ApiMaker, path: str, name: str, value: object
) -> None:
    reply = await make_api().post(path, _body(path, **{name: value}))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == name
    assert name in reply.json()["error"]["message"]

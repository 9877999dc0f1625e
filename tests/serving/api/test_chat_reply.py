import json
from typing import Any

import pytest

from serving.engine.request import FinishReason
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, ApiMaker, chat_body, text_of

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "title": None}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


async def test_a_whole_answer_has_text_reason_and_usage(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("grüße", cached_tokens=3))
    reply = (await api.post(PATH, chat_body())).json()
    prompt = len(api.engine.requests[0].prompt_token_ids)
    assert reply["object"] == "chat.completion"
    assert reply["model"] == MODEL
    assert reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "grüße", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "stop", None)
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 8,
        "total_tokens": prompt + 8,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_a_stream_starts_with_the_role_and_ends_with_the_reason(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("héllo", chunk=2))
    chunks = await api.events(PATH, chat_body())
    assert {(chunk["object"], chunk["model"], chunk["id"]) for chunk in chunks} == {
        ("chat.completion.chunk", MODEL, chunks[0]["id"])
    }
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == "héllo"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_comes_last_without_choices_where_it_is_asked_for(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("abc"))
    chunks = await api.events(PATH, chat_body(stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_usage_so_far_comes_with_every_chunk_where_it_is_asked_for(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("abc"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await api.events(PATH, chat_body(stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 3, 4, 4]


async def test_every_choice_has_its_own_index_and_end(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("one"), make_api.says("twoo"), make_api.says("three"))
    whole = (await api.post(PATH, chat_body(n=3))).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {"one", "twoo", "three"}
    assert whole["usage"]["completion_tokens"] == len("onetwoothree") + 3
    api = make_api(make_api.says("one"), make_api.says("twoo"), make_api.says("three"))
    chunks = await api.events(PATH, chat_body(n=3))
    assert {text_of(chunks, index) for index in range(3)} == {"one", "twoo", "three"}
    roles = [choice["index"] for chunk in chunks for choice in chunk["choices"] if "role" in choice["delta"]]
    assert sorted(roles) == [0, 1, 2]


async def test_logprobs_are_of_the_tokens_with_as_many_alternatives_as_asked(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ab"))
    whole = (await api.post(PATH, chat_body(logprobs=True, top_logprobs=2))).json()
    content = whole["choices"][0]["logprobs"]["content"]
    first = api.engine.scripts[0].token_ids[0]
    assert [entry["token"] for entry in content[:2]] == ["a", "b"]
    assert content[0]["bytes"] == [97]
    assert content[0]["logprob"] == pytest.approx(-first / 1000)
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    api = make_api(make_api.says("ab"))
    chunks = await api.events(PATH, chat_body(logprobs=True, top_logprobs=2))
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


async def test_logprobs_without_alternatives(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("a"))
    whole = (await api.post(PATH, chat_body(logprobs=True))).json()
    assert whole["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_token_ids_and_prompt_logprobs_come_in_vllms_shape(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ab"))
    whole = (await api.post(PATH, chat_body(return_token_ids=True, prompt_logprobs=1))).json()
    prompt = list(api.engine.requests[0].prompt_token_ids)
    assert whole["prompt_token_ids"] == prompt
    assert whole["choices"][0]["token_ids"] == list(api.engine.scripts[0].token_ids)
    assert whole["prompt_logprobs"][0] is None
    assert whole["prompt_logprobs"][1] == {
        str(prompt[1]): {
            "logprob": pytest.approx(-prompt[1] / 1000),
            "rank": 1,
            "decoded_token": api.service.generator.detokenize([prompt[1]]),
        }
    }
    api = make_api(make_api.says("ab"))
    chunks = await api.events(PATH, chat_body(return_token_ids=True))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * (len(chunks) - 1)
    streamed = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert streamed == list(api.engine.scripts[0].token_ids)


@pytest.mark.parametrize(
    ("fields", "reason", "stop_reason"),
    [({"stop": "lo"}, "stop", "lo"), ({"stop_token_ids": [75]}, "stop", 75), ({"max_tokens": 2}, "length", None)],
)
async def test_a_reply_says_why_it_ended(
    make_api: ApiMaker, fields: dict[str, Any], reason: str, stop_reason: str | int | None
) -> None:
    api = make_api(make_api.says("hello"))
    (choice,) = (await api.post(PATH, chat_body(**fields))).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, stop_reason)
    last = (await api.events(PATH, chat_body(**fields)))[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == (reason, stop_reason)


async def test_a_tool_call_is_read_from_the_text(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(f"Well. {CALL}"))
    (choice,) = (await api.post(PATH, chat_body(tools=TOOLS))).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert set(call) == {"id", "type", "function"}


async def test_a_streamed_tool_call_comes_whole_with_its_index(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(CALL + CALL, chunk=3))
    chunks = await api.events(PATH, chat_body(tools=TOOLS))
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [(call["index"], json.loads(call["function"]["arguments"])) for call in calls] == [
        (0, {"a": 1}),
        (1, {"a": 1}),
    ]
    assert len({call["id"] for call in calls}) == 2
    assert text_of(chunks) == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_that_is_only_calls_has_null_content(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(CALL))
    (choice,) = (await api.post(PATH, chat_body(tools=TOOLS))).json()["choices"]
    assert choice["message"]["content"] is None


async def test_tool_choice_none_leaves_the_tools_out_and_the_text_alone(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(CALL))
    (choice,) = (await api.post(PATH, chat_body(tools=TOOLS, tool_choice="none"))).json()["choices"]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    prompt = api.service.generator.detokenize(list(api.engine.requests[0].prompt_token_ids))
    assert "add" not in prompt


async def test_messages_tools_and_template_switches_reach_the_template(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    past = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    body = chat_body(messages=past, tools=TOOLS, chat_template_kwargs={"shout": True})
    assert (await api.post(PATH, body)).status_code == 200
    prompt = api.service.generator.detokenize(list(api.engine.requests[0].prompt_token_ids))
    assert "one\ntwo" in prompt
    assert '"arguments": {"a": 2}' in prompt
    assert '"title": null' in prompt
    assert prompt.endswith("<|im_start|>assistant\nLOUD")


async def test_the_last_message_can_be_continued(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once upon"}]
    assert (await api.post(PATH, chat_body(messages=begun, continue_final_message=True))).status_code == 200
    prompt = api.service.generator.detokenize(list(api.engine.requests[0].prompt_token_ids))
    assert prompt.endswith("Once upon")


async def test_sampling_fields_reach_the_engine(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100},
        "allowed_token_ids": [1, 2],
        "bad_words": ["zz"],
        "min_tokens": 1,
        "max_completion_tokens": 9,
        "ignore_eos": True,
        "seed": 11,
        "cache_salt": "mine",
        "stop_token_ids": [3],
    }
    reply = await api.post(PATH, chat_body(**fields))
    assert reply.status_code == 200, reply.text
    request = api.engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.0, 1.1)
    assert sampling.logit_bias == ((7, -100.0),)
    assert sampling.allowed_token_ids == (1, 2)
    assert sampling.bad_words
    assert (sampling.min_tokens, sampling.max_tokens, sampling.eos_token_ids) == (1, 9, ())
    assert (sampling.seed, sampling.stop_token_ids, request.cache_salt) == (11, (3,), "mine")


async def test_labels_are_accepted_and_change_nothing(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    labels = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k", "store": False}
    assert (await api.post(PATH, chat_body(seed=1))).status_code == 200
    assert (await api.post(PATH, chat_body(seed=1, **labels))).status_code == 200
    plain, labelled = api.engine.requests
    assert (plain.sampling, plain.prompt_token_ids) == (labelled.sampling, labelled.prompt_token_ids)


async def test_an_engine_that_fails_gives_an_error_and_not_half_an_answer(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=make_api.ids("ab"), finish=FinishReason.ERROR, error="device lost"))
    reply = await api.post(PATH, chat_body())
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"


async def test_chat_without_a_template_is_refused(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"), chat=False)
    reply = await api.post(PATH, chat_body())
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_beyond_the_window_is_refused_under_the_name_that_the_client_used(
    make_api: ApiMaker, name: str, stream: bool
) -> None:
    error = (await make_api().post(PATH, chat_body(stream=stream, **{name: 1_000_000}))).json()["error"]
    assert (error["param"], error["code"]) == (name, "context_length_exceeded")
    assert f"{name} is 1000000" in error["message"]
    assert f"{name} may be at most" in error["message"]

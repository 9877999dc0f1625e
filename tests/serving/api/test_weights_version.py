"""Every answer names the weights that drew it; a stream, from where others went on with it."""

import pytest

from serving.client import schema
from serving.client.replies import chunk_of, reply_of
from tests.serving.api.conftest import ApiMaker, chat_body
from tests.serving.api.grpc.serving_grpc import channel_to, chat, streaming, unary

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TEXT_BODY = {"prompt": "hi", "max_tokens": 10}
OLD, NEW = "fp_old", "fp_new"


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (TEXT, TEXT_BODY)])
async def test_an_answer_over_http_names_the_weights(make_api: ApiMaker, path: str, body: dict) -> None:
    api = make_api(make_api.says("hello", weights=(OLD, NEW)))
    assert (await api.post(path, body)).json()["system_fingerprint"] == NEW
    chunks = await api.events(path, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert [chunk["system_fingerprint"] for chunk in (chunks[0], chunks[1], chunks[-1])] == [OLD, OLD, NEW]


async def test_an_answer_of_unnamed_weights_names_none(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    assert (await api.post(CHAT, chat_body())).json()["system_fingerprint"] is None
    assert all("system_fingerprint" not in chunk for chunk in await api.events(CHAT, chat_body()))


async def test_an_answer_over_grpc_names_the_weights(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello", weights=(OLD, NEW)))
    async with channel_to(api) as channel:
        whole = await unary(channel, "Generate", schema.GenerateReply)(schema.GenerateRequest(prompt="hi"))
        chunks = [chunk_of(chunk) async for chunk in streaming(channel)(chat())]
    assert reply_of(whole).system_fingerprint == NEW
    assert [chunk.system_fingerprint for chunk in chunks] == [None] * (len(chunks) - 1) + [NEW]

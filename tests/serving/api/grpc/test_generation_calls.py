"""Generation over gRPC: what HTTP answers, in messages."""

from serving.client import schema
from tests.serving.api.conftest import MODEL, ApiMaker
from tests.serving.api.grpc.serving_grpc import channel_to, chat, streaming, unary


async def test_a_prompt_is_answered_whole(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    async with channel_to(api) as channel:
        reply = await unary(channel, "Generate", schema.GenerateReply)(schema.GenerateRequest(prompt="hi"))
    assert reply.model == MODEL
    assert [choice.text for choice in reply.choices] == ["hello"]
    assert reply.choices[0].finish_reason == 1
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 6)


async def test_a_chat_is_streamed_and_the_pieces_joined_are_the_whole(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    async with channel_to(api) as channel:
        chunks = [chunk async for chunk in streaming(channel)(chat())]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "hello"
    assert [chunk.HasField("usage") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [bool(chunk.id) for chunk in chunks] == [True] + [False] * (len(chunks) - 1)

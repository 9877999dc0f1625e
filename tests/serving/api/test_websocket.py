"""Requests over a WebSocket: the words of HTTP, several at a time, each with one end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from serving.api.websocket import MOST_REQUESTS
from tests.serving.api.conftest import MODEL, WINDOW, Api, ApiMaker, chat_body, text_body
from tests.serving.api.gated_engine import GatedEngine
from tests.serving.api.listening import listening

Message = dict[str, Any]


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def ask(self, name: str, body: Message, kind: str = "chat.completions") -> None:
        await self.send(type=kind, id=name, body=body)

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def receive(self) -> Message:
        return json.loads(await self.connection.recv())

    async def until_end(self, name: str) -> list[Message]:
        """This request's messages up to its terminal one; others' are dropped."""
        messages: list[Message] = []
        while not messages or messages[-1]["type"] not in ("done", "error"):
            message = await self.receive()
            if message["id"] == name:
                messages.append(message)
        return messages


@contextlib.asynccontextmanager
async def socket_to(api: Api, **options: Any) -> AsyncIterator[Socket]:
    async with (
        listening(api.app) as port,
        connect(f"ws://127.0.0.1:{port}/v1/socket", compression=None, **options) as connection,
    ):
        yield Socket(connection)


def text_of(messages: list[Message]) -> str:
    choices = [choice for message in messages if message["type"] == "event" for choice in message["data"]["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def gated(make_api: ApiMaker) -> tuple[Api, GatedEngine]:
    engine = GatedEngine([make_api.says("x" * 50)], vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    return make_api(engine=engine), engine


async def test_a_chat_is_streamed_in_numbered_events_and_ends_once(make_api: ApiMaker) -> None:
    async with socket_to(make_api(make_api.says("hello"))) as socket:
        await socket.ask("a", chat_body())
        messages = await socket.until_end("a")
    *events, end = messages
    assert text_of(messages) == "hello"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert end == {"type": "done", "id": "a"}


async def test_events_hold_what_server_sent_events_hold(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    body = chat_body(logprobs=True, top_logprobs=2, return_token_ids=True, stream_options={"include_usage": True})
    over_http = await api.events("/v1/chat/completions", body)
    async with socket_to(api) as socket:
        await socket.ask("a", body)
        over_socket = [message["data"] for message in (await socket.until_end("a"))[:-1]]
    for chunk in over_http + over_socket:
        chunk.pop("id"), chunk.pop("created")
    assert over_socket == over_http


async def test_a_whole_answer_comes_in_one_message(make_api: ApiMaker) -> None:
    async with socket_to(make_api(make_api.says("hello"))) as socket:
        await socket.ask("a", text_body(stream=False), "completions")
        reply, end = await socket.until_end("a")
    assert reply["data"]["choices"][0]["text"] == "hello"
    assert (reply["type"], end["type"]) == ("reply", "done")

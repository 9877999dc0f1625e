"""Requests over a WebSocket: the words of HTTP, several at a time, each with one end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from serving.access import AccessConfig, AuthConfig
from serving.api.service import StreamLimits
from serving.api.websocket import MOST_REQUESTS
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import WINDOW, Api, ApiMaker, chat_body, text_body
from tests.serving.api.gated_engine import GatedEngine
from tests.serving.api.listening import listening
from tests.serving.api.malformed_bodies import malformed_bodies

Message = dict[str, Any]
PATIENCE = 60.0  # seconds; only a broken test waits that long


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


async def test_requests_run_side_by_side_and_each_has_its_own_end(make_api: ApiMaker) -> None:
    async with socket_to(make_api(make_api.says("hello"))) as socket:
        names = [f"r{i}" for i in range(MOST_REQUESTS)]
        for name in names:
            await socket.ask(name, text_body(max_tokens=20), "completions")
        texts, ends = dict.fromkeys(names, ""), []
        while len(ends) < len(names):
            message = await socket.receive()
            if message["type"] == "done":
                ends.append(message["id"])
            else:
                texts[message["id"]] += text_of([message])
    assert sorted(ends) == sorted(names)
    assert set(texts.values()) == {"hello"}


async def test_one_more_request_than_a_socket_takes_is_refused_and_the_others_go_on(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    async with socket_to(api) as socket:
        for i in range(MOST_REQUESTS):
            await socket.ask(f"r{i}", chat_body())
        await socket.ask("more", chat_body())
        (refused,) = await socket.until_end("more")
        assert (refused["error"]["type"], refused["error"]["code"]) == ("rate_limit_error", "too_many_requests")
        engine.let(60 * MOST_REQUESTS)
        assert (await socket.until_end("r0"))[-1]["type"] == "done"


async def test_a_request_that_is_cancelled_in_the_packet_that_asks_for_it_ends_too(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    ask = {"type": "chat.completions", "id": "a", "body": chat_body()}
    async with asyncio.timeout(PATIENCE), socket_to(api) as socket:
        for message in (ask, {"type": "cancel", "id": "a"}):
            socket.connection.protocol.send_text(json.dumps(message).encode())
        socket.connection.transport.write(b"".join(socket.connection.protocol.data_to_send()))
        assert (await socket.until_end("a"))[-1]["error"]["code"] == "stream_cancelled"
        engine.let(1000)
        await socket.ask("a", chat_body())  # the name is free again
        assert (await socket.until_end("a"))[-1]["type"] == "done"


async def test_a_client_that_is_gone_is_no_failure_of_the_requests_that_find_it_out(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture
) -> None:
    api = make_api(make_api.says("x"))
    asks = [{"type": "chat.completions", "id": name, "body": chat_body()} for name in ("a", "b", "c")]
    coming = [{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": json.dumps(a)} for a in asks)]
    told: list[str] = []

    async def receive() -> Message:
        if coming:
            return coming.pop(0)
        while len(told) < len(asks):  # their lines in the log
            told[:] = [record.getMessage() for record in caplog.records if "request" in record.getMessage()]
            await asyncio.sleep(0.01)
        return {"type": "websocket.disconnect", "code": 1006}

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            raise OSError

    headers = [(b"host", b"127.0.0.1:80")]
    scope = {"type": "websocket", "http_version": "1.1", "path": "/v1/socket", "query_string": b""}
    scope |= {
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        "scheme": "ws",
    }
    async with asyncio.timeout(PATIENCE):
        with caplog.at_level("INFO"):
            await api.app(scope, receive, send)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_cancelled_request_ends_with_that_as_its_reason_and_frees_the_engine(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    async with socket_to(api) as socket:
        await socket.ask("a", chat_body())
        engine.let(2)
        assert (await socket.receive())["type"] == "event"
        await socket.send(type="cancel", id="a")
        assert (await socket.until_end("a"))[-1]["error"]["code"] == "stream_cancelled"
        await engine.ended.wait()
        await socket.send(type="cancel", id="a")  # too late: nothing happens
        engine.let(1000)
        await socket.ask("a", chat_body())  # the name is free again
        assert (await socket.until_end("a"))[-1]["type"] == "done"
    assert len(engine.closed) == 1


async def test_a_client_that_leaves_ends_all_it_asked_for(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    async with listening(api.app) as port:
        async with connect(f"ws://127.0.0.1:{port}/v1/socket") as connection:
            socket = Socket(connection)
            await socket.ask("a", chat_body(n=2))
            await socket.ask("b", chat_body())
            engine.let(6)
            await socket.receive()
            connection.transport.abort()
        while len(engine.closed) < len(engine.requests) or not engine.requests:
            await asyncio.sleep(0)
    assert api.service.slots.open == 0


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("{", None, "invalid_json"),
        ("[]", None, "invalid_json"),
        ('{"type": "chat.completions", "type": "cancel", "id": "a"}', "type", "duplicate_key"),
        ('{"type": "chat", "id": "a"}', "type", "invalid_value"),
        ('{"type": "cancel"}', "id", "missing_required_parameter"),
        ('{"type": "cancel", "id": ""}', "id", "invalid_value"),
        ('{"type": "cancel", "id": "a", "body": {}}', "body", "invalid_value"),
        ('{"type": "completions", "id": "a"}', "body", "missing_required_parameter"),
        ('{"type": "completions", "id": "a", "body": {"prompt": "x"}, "stream": true}', "stream", "unknown_parameter"),
        ('{"type": "completions", "id": "a", "body": {}}', "prompt", "missing_required_parameter"),
        ('{"type": "completions", "id": "a", "body": {"prompt": "x", "top_p": 3}}', "top_p", "invalid_value"),
        ('{"type": "completions", "id": "a", "body": {"prompt": "x", "top_p": NaN}}', None, "invalid_json"),
        ('{"type": "read", "id": "a", "stream_id": "none"}', "stream_id", "stream_not_found"),
        ('{"type": "completions", "id": "a", "body": {"prompt": "x", "model": "y"}}', "model", "model_not_found"),
    ],
)
async def test_a_message_that_is_wrong_is_answered_and_the_socket_stays(
    make_api: ApiMaker, message: str, param: str | None, code: str
) -> None:
    async with socket_to(make_api(make_api.says("hello"))) as socket:
        await socket.connection.send(message)
        answer = await socket.receive()
        assert answer["type"] == "error"
        assert answer["error"]["code"] == code
        if param is not None:
            assert answer["error"]["param"] == param
        await socket.ask("b", chat_body())
        assert text_of(await socket.until_end("b")) == "hello"


async def test_a_name_that_is_in_use_is_refused_without_ending_the_request_that_has_it(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    async with socket_to(api) as socket:
        await socket.ask("a", chat_body())
        await socket.ask("a", chat_body())
        refused = await socket.receive()
        assert (refused["id"], refused["error"]["param"]) == (None, "id")
        engine.let(60)
        assert (await socket.until_end("a"))[-1]["type"] == "done"


async def test_a_page_of_another_origin_cannot_open_a_socket(make_api: ApiMaker) -> None:
    async with listening(make_api(make_api.says("x")).app) as port:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await connect(f"ws://127.0.0.1:{port}/v1/socket", additional_headers={"origin": "https://evil.example"})
        assert caught.value.response.status_code == 403
        async with connect(
            f"ws://127.0.0.1:{port}/v1/socket", additional_headers={"origin": f"http://127.0.0.1:{port}"}
        ):
            pass


async def test_a_socket_elsewhere_and_a_request_without_its_upgrade_are_told_so(make_api: ApiMaker) -> None:
    api = make_api()
    async with listening(api.app) as port:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{port}/v1/chat/completions"):
                pass
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "unknown_url"
    reply = await api.get("/v1/socket")
    assert (reply.status_code, reply.headers["upgrade"]) == (426, "websocket")
    assert reply.json()["error"]["code"] == "upgrade_required"
    assert (await api.get("/v1/sockets")).status_code == 404


async def test_bytes_and_messages_that_are_too_long_close_the_socket_with_their_codes(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"), max_body_bytes=2048)
    async with listening(api.app) as port:
        for sent, code in ((b"{}", 1003), ("x" * 10_000, 1009)):
            async with connect(f"ws://127.0.0.1:{port}/v1/socket") as connection:
                await connection.send(sent)
                with pytest.raises(websockets.ConnectionClosed):
                    await connection.recv()
            assert connection.close_code == code


async def test_sockets_beyond_the_bound_are_refused(make_api: ApiMaker) -> None:
    async with listening(make_api(make_api.says("x"), max_streams=1).app) as port:
        async with connect(f"ws://127.0.0.1:{port}/v1/socket"):
            with pytest.raises(websockets.InvalidStatus) as caught:
                await connect(f"ws://127.0.0.1:{port}/v1/socket")
        assert caught.value.response.status_code == 503
        assert "retry-after" in caught.value.response.headers


async def test_a_server_that_stops_lets_requests_end_and_then_closes(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    stopped = contextlib.AsyncExitStack()
    port = await stopped.enter_async_context(listening(api.app, drain_seconds=60))
    async with connect(f"ws://127.0.0.1:{port}/v1/socket") as connection:
        socket = Socket(connection)
        await socket.ask("a", chat_body())
        engine.let(2)
        await socket.receive()
        stopping = asyncio.ensure_future(stopped.aclose())
        while (refused := await socket_refusal(socket))["error"]["code"] != "server_stopping":
            pass
        engine.let(60)
        assert (await socket.until_end("a"))[-1]["type"] == "done"
        with pytest.raises(websockets.ConnectionClosed):
            await connection.recv()
        assert connection.close_code == 1012
    await stopping
    assert refused["id"].startswith("late")


async def test_a_request_that_outlasts_the_drain_is_told_why_it_ends(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    stopped = contextlib.AsyncExitStack()
    port = await stopped.enter_async_context(listening(api.app, drain_seconds=0))
    async with connect(f"ws://127.0.0.1:{port}/v1/socket") as connection:
        socket = Socket(connection)
        await socket.ask("a", chat_body())
        engine.let(2)
        await socket.receive()
        stopping = asyncio.ensure_future(stopped.aclose())
        assert (await socket.until_end("a"))[-1]["error"]["code"] == "server_stopping"
        await connection.wait_closed()
        assert connection.close_code == 1012
    await stopping


async def test_a_reader_that_takes_nothing_is_cut_off_and_its_generation_ends(make_api: ApiMaker) -> None:
    size = make_api.tokenizer.vocab_size
    engine = GatedEngine([make_api.says("x" * 4000)], vocab_size=size, max_model_len=WINDOW)
    api = make_api(engine=engine, streams=StreamLimits(slow_reader_seconds=0.2))
    async with listening(api.app, send_buffer=4096) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"type": "chat.completions", "id": "a", "body": chat_body(logprobs=True, top_logprobs=20)})
        writer.write(masked(body.encode()))
        engine.let(5000)
        await engine.ended.wait()
        assert len(engine.closed) == 1
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1 << 16):  # what was on its way; then the connection is gone
                    pass
        writer.close()


async def test_a_durable_stream_is_read_again_from_where_it_was_left(make_api: ApiMaker) -> None:
    async with socket_to(make_api(make_api.says("hello"))) as socket:
        await socket.ask("a", chat_body(durable=True))
        started, *events, end = await socket.until_end("a")
        assert (started["type"], end["type"]) == ("started", "done")
        await socket.send(type="read", id="b", stream_id=started["stream_id"], after=3)
        _, *again, end = await socket.until_end("b")
    assert [event["data"] for event in again] == [event["data"] for event in events[3:]]
    assert [event["seq"] for event in again] == [event["seq"] for event in events[3:]]
    assert end["type"] == "done"


async def socket_refusal(socket: Socket) -> Message:
    """What a request is told that is wrong in its body, or comes when the server stops."""
    name = f"late{id(object())}"
    await socket.ask(name, {"messages": []})
    return (await socket.until_end(name))[-1]


UPGRADE = (
    b"GET /v1/socket HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
)


def masked(text: bytes) -> bytes:
    """A client's frame, under a mask of zeros."""
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text


async def test_malformed_bodies_are_refused_as_over_http_and_a_running_request_goes_on(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    async with socket_to(api) as socket:
        await socket.ask("running", chat_body())
        await engine.started.wait()
        for wrong in malformed_bodies(200, seed=6):
            try:
                body = wrong.content.decode()
            except UnicodeDecodeError:
                continue  # such bytes are no text frame
            kind = "chat.completions" if "chat" in wrong.path else "completions"
            await socket.connection.send(f'{{"type": "{kind}", "id": "a", "body": {body}}}')
            answer = await socket.receive()
            assert answer["type"] == "error", (wrong.kind, body[:200])
            assert answer["error"]["param"] or not wrong.names_param, (wrong.kind, answer)
        engine.let(60)
        assert (await socket.until_end("running"))[-1]["type"] == "done"
    assert len(engine.requests) == 1


async def test_a_key_that_is_revoked_begins_nothing_more_on_a_socket_that_is_open(
    make_api: ApiMaker, tmp_path: Path
) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite")
    access = AccessConfig(auth=AuthConfig(keys=tmp_path / "keys.sqlite"))
    engine = GatedEngine([make_api.says("x" * 50)], vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    api = make_api(engine=engine, gateway=Gateway(access, identity=Identity(access, keys=keys)))
    key = keys.create("acme", [Scope.INFERENCE])
    headers = {"authorization": f"Bearer {key.text}"}
    async with asyncio.timeout(PATIENCE), socket_to(api, additional_headers=headers) as socket:
        await socket.ask("running", chat_body())
        engine.let(2)
        assert (await socket.receive())["type"] == "event"
        keys.revoke(key.id)
        await socket.ask("a", chat_body())
        assert (await socket.until_end("a"))[-1]["error"]["type"] == "authentication_error"
        engine.let(1000)
        assert (await socket.until_end("running"))[-1]["type"] == "done"
    assert len(engine.requests) == 1


async def test_a_socket_asks_for_a_key_where_the_api_does(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"), gateway=Gateway(AccessConfig(auth=AuthConfig(mode="required"))))
    async with listening(api.app) as port:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            with pytest.raises(websockets.InvalidStatus) as caught:
                await connect(f"ws://127.0.0.1:{port}/v1/socket", additional_headers=headers)
            assert caught.value.response.status_code == 401

"""The benchmark's HTTP client against a raw socket server that the test dictates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from serving.bench.stream_client import StreamClient, _Connection
from serving.errors import RequestError

PATIENCE = 180.0  # seconds; only a broken test waits that long
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class RawServer:
    """Answers the n-th request on any connection with the n-th list of writes; None closes the connection."""

    def __init__(self, answers: Sequence[Sequence[bytes | None]]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            for data in self.answers.pop(0):
                if data is None:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def talking_to(server: RawServer) -> AsyncIterator[StreamClient]:
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    client = StreamClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", {"authorization": "Bearer k"})
    try:
        async with asyncio.timeout(PATIENCE):
            yield client
    finally:
        await client.close()
        listener.close()


def collect(into: list[bytes]) -> Callable[[float, bytes], None]:
    return lambda _, payload: into.append(payload)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
async def test_events_arrive_whole_however_the_bytes_are_cut(size: int) -> None:
    wire = b'data: {"a": 1}\n\ndata: two\r\n\r\n: a comment\n\ndata:three\n\ndata: [DONE]\n\n'
    wire_bytes = [STREAM_HEAD, *(chunk(wire[i : i + size]) for i in range(0, len(wire), size)), b"0\r\n\r\n"]
    server = RawServer([wire_bytes])
    events: list[bytes] = []
    async with talking_to(server) as client:
        reply = await client.post("/v1/completions", b"{}", collect(events))
    assert reply.status == 200
    assert events == [b'{"a": 1}', b"two", b"three", b"[DONE]"]
    assert server.requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer k\r\n" in server.requests[0]


async def test_a_connection_is_kept_for_the_next_request() -> None:
    answer = [STREAM_HEAD, chunk(b"data: x\n\n"), b"0\r\n\r\n"]
    server = RawServer([answer, answer])
    events: list[bytes] = []
    async with talking_to(server) as client:
        await client.post("/", b"{}", collect(events))
        await client.post("/", b"{}", collect(events))
    assert events == [b"x", b"x"]
    assert server.connections == 1


async def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    answer = [STREAM_HEAD, chunk(b"data: x\n\n"), b"0\r\n\r\n"]
    server = RawServer([answer, [None], answer])
    events: list[bytes] = []
    async with talking_to(server) as client:
        await client.post("/", b"{}", collect(events))
        await client.post("/", b"{}", collect(events))
    assert events == [b"x", b"x"]
    assert server.connections == 2


async def test_an_error_reply_comes_with_status_and_body() -> None:
    answer = [b"HTTP/1.1 429 Too Many\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n", b'{"error":1}']
    async with talking_to(RawServer([answer])) as client:
        reply = await client.post("/", b"{}", collect([]))
    assert (reply.status, reply.body) == (429, b'{"error":1}')


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n"])
async def test_a_reply_without_a_length_ends_with_its_connection(head: bytes) -> None:
    answer = [head + b"content-type: text/event-stream\r\n\r\n", b"data: x\n\n", b"data: [DONE]\n\n", None]
    server = RawServer([answer, answer])
    events: list[bytes] = []
    async with talking_to(server) as client:
        for _ in range(2):
            assert (await client.post("/", b"{}", collect(events))).status == 200
    assert events == [b"x", b"[DONE]"] * 2
    assert server.connections == 2


async def test_an_error_without_a_length_has_its_body() -> None:
    answer = [b"HTTP/1.0 503 Full\r\ncontent-type: text/plain\r\n\r\n", b"too ", b"much", None]
    async with talking_to(RawServer([answer])) as client:
        reply = await client.post("/", b"{}", collect([]))
    assert (reply.status, reply.body) == (503, b"too much")


async def test_a_reset_is_no_end_of_a_reply_without_a_length() -> None:
    connection, _ = connected()
    reply = asyncio.create_task(connection.send(b"GET", collect([])))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: x\n\n")
    connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(ConnectionResetError, match="before the reply's end"):
        await reply


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


def connected() -> tuple[_Connection, Wire]:
    connection, wire = _Connection(), Wire()
    connection.connection_made(wire)
    return connection, wire


async def test_a_server_that_speaks_before_it_is_asked_is_left() -> None:
    connection, wire = connected()
    connection.data_received(b"220 mail.example.com\r\n")
    assert wire.closed
    with pytest.raises(ConnectionResetError, match="before it was asked"):
        await connection.send(b"GET", collect([]))
    assert wire.written == b""


async def test_a_server_that_closes_before_it_is_asked_is_not_waited_for() -> None:
    connection, _ = connected()
    connection.connection_lost(None)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConnectionResetError, match="before it was asked"):
            await connection.send(b"GET", collect([]))


async def test_a_connection_on_which_a_server_speaks_between_two_requests_is_not_kept() -> None:
    connection, wire = connected()
    reply = asyncio.create_task(connection.send(b"GET", collect([])))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    assert (await reply).body == b"ok"
    assert (connection.reusable, connection.open) == (True, True)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
    assert (wire.closed, connection.open) == (True, False)


@pytest.mark.parametrize(
    "answer",
    [[STREAM_HEAD, chunk(b"data: x\n\n"), None], [None], [b"not HTTP at all\r\n\r\n"]],
    ids=["cut", "empty", "bad"],
)
async def test_a_reply_that_breaks_off_is_an_os_error(answer: list[bytes | None]) -> None:
    async with talking_to(RawServer([answer])) as client:
        with pytest.raises(OSError, match=r"before the reply's end|is not HTTP"):
            await client.post("/", b"{}", collect([]))


async def test_nobody_listening_is_an_os_error() -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await StreamClient(f"http://127.0.0.1:{port}").post("/", b"{}", collect([]))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_an_address_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="is not an http"):
        StreamClient(url)

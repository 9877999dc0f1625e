"""How long what a client sent has waited is asked of the kernel."""

import asyncio
import socket
import sys
from collections.abc import Iterator

import pytest

from serving.api.unread import unread_seconds
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.listening import listening

PATIENCE = 120.0


class Held(asyncio.BaseTransport):
    """Has a socket, and does not read from it."""

    def __init__(self, held: socket.socket | None) -> None:
        super().__init__({"socket": held})


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, and the server's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        yield client, server


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it on Linux alone")
async def test_it_grows_while_nobody_reads_and_begins_anew_with_what_comes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    client.sendall(b"first")
    async with asyncio.timeout(PATIENCE):
        while (waited := unread_seconds(Held(server))) < 0.05:
            await asyncio.sleep(0.01)
        client.sendall(b"second")
        while unread_seconds(Held(server)) >= waited:
            await asyncio.sleep(0)


def test_what_has_no_such_clock_has_waited_for_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = socket.socketpair()
    with left, right:
        assert unread_seconds(Held(left)) == 0.0
    assert unread_seconds(Held(None)) == 0.0
    pair[1].close()
    assert unread_seconds(Held(pair[1])) == 0.0


async def test_a_request_that_is_read_tells_the_gateway(make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.api.bounded_protocol.unread_seconds", lambda transport: 7.0)
    api = make_api(make_api.says("x"))
    told: list[float] = []
    monkeypatch.setattr(api.app.state.service.gateway.lag, "read", told.append)
    async with listening(api.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /x HTTP/1.0\r\nhost: localhost\r\n\r\n")
        await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert told == [7.0]

"""What becomes of a command that Redis does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, TimeoutError

from serving.redis_client import redis_client


class Listener:
    """In Redis's place: it says OK to what greets it, and to a PING what `answers` has; None breaks the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = list(answers)
        self.pings = 0

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            words = [await self._word(reader) for _ in range(int(head[1:]))]
            if words[0] != b"PING":
                writer.write(b"+OK\r\n")
                continue
            self.pings += 1
            answer = self._answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()

    async def _word(self, reader: asyncio.StreamReader) -> bytes:
        await reader.readline()  # its length
        return (await reader.readline()).strip()


@asynccontextmanager
async def listening(listener: Listener, folder: Path) -> AsyncIterator[str]:
    server = await asyncio.start_unix_server(listener.meet, folder / "redis.sock")
    try:
        yield f"unix://{folder / 'redis.sock'}"
    finally:
        server.close()


async def test_a_command_whose_connection_breaks_fails_and_is_not_sent_again(tmp_path: Path) -> None:
    listener = Listener(None, b"+PONG\r\n")
    async with listening(listener, tmp_path) as url, redis_client(url, None, answer_seconds=60.0) as client:
        with pytest.raises(ConnectionError):
            await client.ping()
        assert listener.pings == 1
        assert await client.ping()


async def test_a_client_that_reopens_sends_it_once_more(tmp_path: Path) -> None:
    listener = Listener(None, b"+PONG\r\n", None, None, b"+PONG\r\n")
    async with (
        listening(listener, tmp_path) as url,
        redis_client(url, None, answer_seconds=60.0, reopens=True) as client,
    ):
        assert await client.ping()
        assert listener.pings == 2
        with pytest.raises(ConnectionError):
            await client.ping()
        assert listener.pings == 4


@pytest.mark.parametrize("reopens", [False, True])
async def test_an_answer_that_is_late_is_not_waited_for_and_not_asked_for_again(tmp_path: Path, reopens: bool) -> None:
    listener = Listener(b"", b"")
    async with (
        listening(listener, tmp_path) as url,
        redis_client(url, None, answer_seconds=0.1, reopens=reopens) as client,
    ):
        with pytest.raises(TimeoutError):
            await client.ping()
    assert listener.pings <= 1  # none, where even the greeting was late

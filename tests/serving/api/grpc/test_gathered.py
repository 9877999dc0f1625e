"""Items that come while the last ones are being written leave together."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from serving.api.grpc.gathered import gathered


class Source:
    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.given = 0
        self.closed = asyncio.Event()
        self._count = count
        self._error = error

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for i in range(self._count):
                await asyncio.sleep(0)
                self.given += 1
                yield i
            if self._error is not None:
                raise self._error
        finally:
            self.closed.set()


async def test_nothing_is_lost_doubled_or_out_of_order() -> None:
    lists = []
    async for taken in gathered(Source(100).items(), 7):
        lists.append(taken)
        for _ in range(len(lists) % 5):
            await asyncio.sleep(0)
    assert [item for taken in lists for item in taken] == list(range(100))
    assert max(map(len, lists)) > 1


async def test_a_source_runs_ahead_of_its_reader_by_the_bound_and_no_more() -> None:
    source = Source(100)
    lists = gathered(source.items(), 7)
    await anext(lists)
    given = source.given
    for _ in range(100):
        await asyncio.sleep(0)
    assert source.given <= given + 7
    await lists.aclose()
    assert source.closed.is_set()


async def test_what_came_before_a_failure_comes_first() -> None:
    seen: list[int] = []
    lists = gathered(Source(5, ValueError("broken")).items(), 7)
    while len(seen) < 5:
        seen += await anext(lists)
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="broken"):
        await anext(lists)

"""What the engine's thread tells an event loop that closes meanwhile."""

import asyncio
from typing import Any

import pytest

from serving.engine.inbox import call_soon


class ClosingMeanwhile(asyncio.SelectorEventLoop):
    """Open whenever it is asked, and closed when it is called."""

    def call_soon_threadsafe(self, *arguments: Any, **named: Any) -> asyncio.Handle:
        self.close()
        return super().call_soon_threadsafe(*arguments, **named)


class Broken(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(self, *arguments: Any, **named: Any) -> asyncio.Handle:
        raise RuntimeError("another fault")


@pytest.mark.parametrize("close_first", [False, True])
def test_nobody_is_told_where_the_loop_has_closed(close_first: bool) -> None:
    loop, told = ClosingMeanwhile(), []
    if close_first:
        loop.close()
    call_soon(loop, told.append, "news")
    assert loop.is_closed()
    assert told == []


def test_another_fault_of_a_loop_is_not_hidden() -> None:
    loop, told = Broken(), []
    with pytest.raises(RuntimeError, match="another fault"):
        call_soon(loop, told.append, "news")
    loop.close()

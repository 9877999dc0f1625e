"""A queue of connections that stays long is refused from; a burst is not."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from serving.api.accept_queue import CALM_SECONDS, LONG, PATIENCE_SECONDS, SHORT, AcceptQueue


class QueueOf(AcceptQueue):
    """Its length and its time are the test's."""

    def __init__(self) -> None:
        self.now, self.waiting = 100.0, 0
        super().__init__(clock=lambda: self.now)

    @property
    def length(self) -> int:
        return self.waiting

    def at(self, seconds: float, waiting: int) -> bool:
        self.now, self.waiting = 100.0 + seconds, waiting
        return self.refuses()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening


def test_a_burst_is_let_in() -> None:
    queue = QueueOf()
    assert not queue.at(0, 10 * LONG)
    assert not queue.at(PATIENCE_SECONDS - 0.1, LONG)
    assert not queue.at(PATIENCE_SECONDS, LONG - 1)
    assert not queue.at(PATIENCE_SECONDS + 0.1, 10 * LONG)  # another one


def test_a_queue_that_stays_long_is_refused_from_until_it_is_short() -> None:
    queue = QueueOf()
    queue.at(0, LONG)
    assert queue.at(PATIENCE_SECONDS, LONG)
    assert queue.at(PATIENCE_SECONDS + 0.1, SHORT)
    assert not queue.at(PATIENCE_SECONDS + 0.2, SHORT - 1)


def test_it_is_refused_from_at_once_again_before_it_has_been_short_for_a_while() -> None:
    queue = QueueOf()
    queue.at(0, LONG)
    queue.at(PATIENCE_SECONDS, LONG)
    begin = PATIENCE_SECONDS + 0.1
    assert not queue.at(begin, 0)
    assert queue.at(begin + CALM_SECONDS / 2, SHORT)
    assert not queue.at(begin + CALM_SECONDS, 0)
    assert not queue.at(begin + 2 * CALM_SECONDS, 0)
    assert not queue.at(begin + 2 * CALM_SECONDS + 0.1, LONG)  # as in the beginning


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's length is read on Linux alone")
def test_what_the_kernel_holds_is_counted(listener: socket.socket) -> None:
    queue = AcceptQueue()
    queue.watch([listener])
    assert queue.length == 0
    with ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(socket.create_connection(listener.getsockname()))
        assert queue.length == 5
        listener.accept()[0].close()
        assert queue.length == 4

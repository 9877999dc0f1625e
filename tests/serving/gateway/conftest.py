import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.gateway.clock import Clock
from tests.serving.gateway.redis_server import RedisServer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="weft-redis-") as folder:  # a short path, as sockets need it
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.stop()

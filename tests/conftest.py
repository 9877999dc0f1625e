"""What tests of several packages share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.postgres_server import PostgresServer
from tests.fakes.quick_compilation import quick_compilation
from tests.fakes.redis_server import RedisServer


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    """In the tests' own process. Servers that they start compile as they do for users."""
    with quick_compilation():
        yield


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One for the whole run: use keys of your own, and leave it running."""
    with tempfile.TemporaryDirectory(prefix="weft-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def mortal_redis() -> Iterator[RedisServer]:
    """Running, and this test's alone."""
    with tempfile.TemporaryDirectory(prefix="weft-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for the whole run: its tables are shared."""
    with tempfile.TemporaryDirectory(prefix="weft-postgres-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder))
        server.start()
        yield server
        server.stop()

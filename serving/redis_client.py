"""How stores here reach Redis: an answer that is late is not waited for, and nothing is asked twice unseen."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError


def redis_client(url: str, password: str | None, *, answer_seconds: float, reopens: bool = False) -> Redis:
    """Nothing is connected before it is used. `answer_seconds` are for a connection, and for an answer. A command whose
    connection breaks fails, for nobody knows whether it was done; where the client `reopens` it is sent once more, for
    commands that may be done twice."""
    return Redis.from_url(
        url,
        password=password,
        socket_timeout=answer_seconds,
        socket_connect_timeout=answer_seconds,
        retry=Retry(NoBackoff(), 1 if reopens else 0, supported_errors=(ConnectionError,)),
    )

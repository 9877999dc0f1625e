"""Connections to one Postgres, shared by what one process keeps there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from serving.errors import WeftError

ANSWER_SECONDS = 10  # to connect, and for an answer
MOST_CONNECTIONS = 8

_SCHEMA_LOCK = 0x77656674  # two processes that create tables at once would fail

Connection = PoolConnectionProxy  # of a pool, in a transaction
Prepare = Callable[[asyncpg.Connection], Awaitable[None]]


class PostgresPool:
    def __init__(
        self,
        url: str,
        password: str | None,
        *,
        prepare: Prepare,
        lost: Callable[[], WeftError],
        adapt: Prepare | None = None,
    ) -> None:
        """`prepare` makes the tables, in one transaction, before anything else and in one process at a time; `adapt`
        makes each new connection ready; `lost` is the error where Postgres is away. Nothing is connected before it is
        used."""
        self._url = url
        self._password = password
        self._prepare = prepare
        self._lost = lost
        self._adapt = adapt
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()

    async def check(self) -> None:
        """Raises what `prepare` raises, and what `lost` makes. Any event loop may be used afterwards."""
        try:
            await self._prepared()
        except _TROUBLE as error:
            raise self._lost() from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        try:
            pool = await self._opened()
            async with pool.acquire(timeout=ANSWER_SECONDS) as db, db.transaction():
                yield db
        except _TROUBLE as error:
            raise self._lost() from error

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def _opened(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                await self._prepared()
                self._pool = await asyncpg.create_pool(
                    self._url,
                    password=self._password,
                    min_size=1,
                    max_size=MOST_CONNECTIONS,
                    timeout=ANSWER_SECONDS,
                    command_timeout=ANSWER_SECONDS,
                    init=self._adapt,
                )
            return self._pool

    async def _prepared(self) -> None:
        db = await asyncpg.connect(
            self._url, password=self._password, timeout=ANSWER_SECONDS, command_timeout=ANSWER_SECONDS
        )
        try:
            async with db.transaction():
                await db.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
                await self._prepare(db)
        finally:
            await db.close(timeout=ANSWER_SECONDS)


_TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

"""The memories of a deployment: whose is on, what is recalled for a turn, and the work behind their backs."""

import asyncio
import logging
from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter

from serving.errors import WeftError
from serving.observability.logs import log_failure
from serving.orchestrator.memory.entries import Entry, Exchange, Person
from serving.orchestrator.memory.setbacks import Setbacks
from serving.orchestrator.memory.store import MemoryStore
from serving.orchestrator.memory.strategies import Ask, Memory, Recalled, memory_of
from serving.settings.memory import MemoryConfig, Strategy

_MOST_WAITING = 1000  # persons whose memories wait to be compacted
_log = logging.getLogger(__name__)


class Memories:
    """Raises ConfigError where the file cannot be used. `registry` gets what is counted; None: nobody's."""

    def __init__(self, config: MemoryConfig, registry: CollectorRegistry | None = None) -> None:
        self._config = config
        self._setbacks = Setbacks()
        self._failures = Counter(
            "weft_memory_summary_failures",
            "Summaries of users' memories that were asked for and not written; logged.",
            registry=registry,
        )
        self._store = MemoryStore(config.path)
        strategies: set[Strategy] = {config.strategy, *config.tenants.values()}
        self._memories: dict[Strategy, Memory] = {one: memory_of(one, self._store, config) for one in strategies}
        self._waiting: dict[Person, Ask] = {}
        self._woken = asyncio.Event()

    @property
    def summary_tokens(self) -> int:
        return self._config.summary_tokens

    def strategy(self, tenant: str) -> Strategy:
        return self._config.tenants.get(tenant, self._config.strategy)

    async def is_on(self, person: Person) -> bool:
        """Never where a request names no user: they would share what they say."""
        if not person.user:
            return False
        said = await self._store.is_on(person)
        return self._config.on if said is None else said

    async def switch(self, person: Person, on: bool) -> None:
        """What is there stays there when it is switched off, and is not recalled."""
        await self._store.switch(person, on)

    async def recall(self, person: Person, question: str, visible: Collection[str]) -> Recalled:
        return await self._memories[self.strategy(person.tenant)].recall(person, question, visible)

    async def life(self, person: Person) -> int | None:
        """For `remember`, asked when a turn begins. None where nothing is kept of it."""
        return None if self.strategy(person.tenant) == "window" else await self._store.life(person)

    async def remember(self, person: Person, exchange: Exchange, ask: Ask, life: int | None) -> None:
        """Kept at once, unless the memory was erased since the turn began in its `life`; what is to be made of it waits
        for `run`, which asks the model."""
        if life is None:
            return
        is_kept = await self._store.add(person, exchange, self._config.most_entries, life)
        if is_kept and self._setbacks.is_due(person) and len(self._waiting) < _MOST_WAITING:
            self._waiting[person] = ask
            self._woken.set()

    async def entries(self, person: Person) -> list[Entry]:
        return await self._store.entries(person)

    async def forget(self, person: Person, entry_id: int | None = None) -> int:
        """How many entries are gone. A summary that is being made of them is not kept, nor, where all are to go, what
        is being said in a turn."""
        return await self._store.forget(person, entry_id)

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        """What there is of a user, or of the whole tenant; unless it is only looked at, it is gone."""
        if not dry_run:
            self._waiting = {person: ask for person, ask in self._waiting.items() if not person.is_of(tenant, user)}
            self._setbacks.forget(tenant, user)
        return await self._store.erase(tenant, user, dry_run)

    async def run(self) -> None:
        """Compacts one memory after the other, until it is cancelled. What is not done then is done after the next
        exchange."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.compact()

    async def compact(self) -> None:
        """Those that wait."""
        while self._waiting:
            person = next(iter(self._waiting))
            ask = self._waiting.pop(person)
            try:
                await self._memories[self.strategy(person.tenant)].compact(person, ask)
            except WeftError as error:
                told = "a memory of the tenant %s was not summarized, and waits for %d exchanges more: %s"
                _log.warning(told, person.tenant, self._failed(person), error.message)
            except Exception as error:  # a fault of the server's own must not end the summaries of all others
                self._failed(person)
                log_failure(_log, "a memory was not summarized", error, tenant=person.tenant)
            else:
                self._setbacks.over(person)

    def _failed(self, person: Person) -> int:
        self._failures.inc()
        return self._setbacks.failed(person)

    def close(self) -> None:
        self._store.close()

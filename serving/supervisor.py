"""Keeps the engine process and the API process alive, and ends them in order.

    starting --ready--> serving --exit--> waiting --backoff over--> starting
        |                                    ^
        +--exit------------------------------+     before the first readiness, after too many exits or one with
                                                   the code of a SetupError: the end

A dead engine takes no stream with it: the API process keeps them open and continues them on the next engine. Beside a
leader on another host there is one child, the follower, which ends by itself when the leader has ended in order.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.lifeline import Status

EXIT_SETUP = 78  # a child ended with a SetupError; sysexits.h calls it EX_CONFIG
EXIT_HOST_LOST = 75  # a child ended because another host's did: not its own fault; sysexits.h calls it EX_TEMPFAIL
ENGINE, API = "engine", "api"
ROLES = (ENGINE, API)  # ended in the reverse order; of further models each engine is a role, `engine:NAME`
_MOST_DOUBLINGS = 30  # far beyond any longest wait; an unbounded power overflows after a thousand failures


class Child(Protocol):
    """A running process, as far as the supervisor is concerned."""

    @property
    def last_lines(self) -> Sequence[str]: ...

    async def wait(self) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    role: str
    status: Status


@dataclass(frozen=True, slots=True)
class Ready:
    """All processes are up, for the first time or again."""

    url: str  # of the API process; empty where there is none
    seconds: float
    again: bool


@dataclass(frozen=True, slots=True)
class Died:
    role: str
    how: str
    restart_in: float  # seconds


@dataclass(frozen=True, slots=True)
class GaveUp:
    role: str
    how: str
    last_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopping:
    pass


Event = Progress | Ready | Died | GaveUp | Stopping
Spawn = Callable[[str, Callable[[Status], None]], Awaitable[Child]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPolicy:
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0
    healthy_seconds: float = 60.0  # a child ready for so long starts its backoff anew
    attempts_before_ready: int = 3
    drain_seconds: float = 60.0  # the API finishes its streams
    stop_seconds: float = 10.0  # the engine ends
    ends_with_child: bool = False  # a child that ends with 0 has done its work; else it must not end by itself


@dataclass(slots=True)
class _Role:
    name: str
    child: Child | None = None
    url: str = ""
    ready_since: float | None = None
    was_ready: bool = False
    failures: int = 0
    attempts: int = 0  # those of the failures that may be its own fault


class Supervisor:
    """`spawn(role, on_status)` starts a child; `report` hears what happens; `sleep` and `now` are the clock."""

    def __init__(
        self,
        spawn: Spawn,
        report: Callable[[Event], None],
        policy: SupervisorPolicy | None = None,
        *,
        roles: Sequence[str] = ROLES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn = spawn
        self._report = report
        self._policy = policy or SupervisorPolicy()
        self._sleep = sleep
        self._now = now
        self._roles = {name: _Role(name) for name in roles}
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._outage_since = 0.0

    def stop(self) -> None:
        """Begins the orderly end; a second call kills. For a signal handler."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    async def run(self) -> int:
        """Until `stop`, or until a child cannot be kept alive. Returns the exit code."""
        self._outage_since = self._now()
        keepers = [asyncio.create_task(self._keep(role)) for role in self._roles.values()]
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([*keepers, stopping], return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        await stopping
        self._report(Stopping())
        for role in reversed(self._roles.values()):
            is_engine = role.name.startswith(ENGINE)
            await self._end(role, self._policy.stop_seconds if is_engine else self._policy.drain_seconds)
        codes = [code for code in await asyncio.gather(*keepers) if code is not None]
        return codes[0] if codes else 0

    async def _keep(self, role: _Role) -> int | None:
        """Restarts one child until the end; an exit code where it had to give up."""
        while not self._stopping.is_set():
            try:
                child = await self._spawn(role.name, lambda status: self._heard(role, status))
            except OSError as error:  # no memory or no file descriptor is left: often for a moment only, after a death
                gave_up = await self._after_exit(role, 1, f"could not be started: {error}", ())
                if gave_up is not None:
                    return gave_up
                continue
            if self._stopping.is_set():  # asked to stop in the middle of the start
                child.kill()
                await child.wait()
                return None
            role.child = child
            code = await child.wait()
            role.child = None
            if self._stopping.is_set():
                return None
            gave_up = await self._after_exit(role, code, _how(code), tuple(child.last_lines))
            if gave_up is not None:
                return gave_up
        return None

    async def _after_exit(self, role: _Role, code: int, how: str, last_lines: tuple[str, ...]) -> int | None:
        policy = self._policy
        if role.ready_since is not None:
            if self._now() - role.ready_since >= policy.healthy_seconds:
                role.failures = 0
            self._outage_since = self._now()
        role.ready_since = None
        if code == 0 and policy.ends_with_child:
            return 0
        role.failures += 1
        role.attempts += code != EXIT_HOST_LOST
        # Who was ready once is set up rightly: what looks otherwise now may be a machine under load, and passes.
        if not role.was_ready and (code == EXIT_SETUP or role.attempts >= policy.attempts_before_ready):
            self._report(GaveUp(role.name, how, last_lines))
            return EXIT_SETUP if code == EXIT_SETUP else 1
        doublings = min(role.failures - 1, _MOST_DOUBLINGS)
        wait = min(policy.first_wait_seconds * 2**doublings, policy.longest_wait_seconds)
        self._report(Died(role.name, how, wait))
        await self._sleep_unless(self._stopping, wait)
        return None

    def _heard(self, role: _Role, status: Status) -> None:
        if not status.ready:
            self._report(Progress(role.name, status))
            return
        role.url = status.url
        role.ready_since = self._now()
        again = all(other.was_ready for other in self._roles.values())
        role.was_ready = True
        if all(other.ready_since is not None for other in self._roles.values()):
            url = next((other.url for other in self._roles.values() if other.url), "")
            self._report(Ready(url, self._now() - self._outage_since, again))

    async def _end(self, role: _Role, patience: float) -> None:
        """Asks the child to end, and kills it where it does not in time."""
        child = role.child
        if child is None:
            return
        child.terminate()
        ended = asyncio.create_task(child.wait())
        late = asyncio.create_task(self._sleep_unless(self._hurried, patience))
        await asyncio.wait([ended, late], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            child.kill()
        await ended
        late.cancel()

    async def _sleep_unless(self, event: asyncio.Event, seconds: float) -> None:
        """Sleeps, but not on after the event."""
        tasks = [asyncio.ensure_future(self._sleep(seconds)), asyncio.create_task(event.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _how(code: int) -> str:
    if code == EXIT_HOST_LOST:
        return "ended with another host's"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; perhaps it ran out of memory" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"

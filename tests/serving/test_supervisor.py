"""The supervisor's decisions, with scripted children and a scripted clock; then with real processes."""

import asyncio
import errno
import os
import signal
import sys
from collections import deque
from collections.abc import Callable

import pytest

from serving.child_process import ChildProcess
from serving.lifeline import Status
from serving.supervisor import (
    EXIT_HOST_LOST,
    EXIT_SETUP,
    ROLES,
    Died,
    Event,
    GaveUp,
    Progress,
    Ready,
    Stopping,
    Supervisor,
    SupervisorPolicy,
)

PATIENCE = 180.0  # seconds; only a broken test waits that long
URL = "http://127.0.0.1:8000"


class ScriptedChild:
    """Runs until told to exit. `stubborn`: SIGTERM does nothing."""

    def __init__(self, role: str, on_status: Callable[[Status], None], stubborn: bool) -> None:
        self.role = role
        self.on_status = on_status
        self.stubborn = stubborn
        self.signals: list[str] = []
        self.last_lines = deque([f"the last words of {role}"])
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        self.on_status(Status("ready", ready=True, url=URL if self.role == "api" else ""))

    def exit(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    def terminate(self) -> None:
        self.signals.append("terminate")
        if not self.stubborn:
            self.exit(0)

    def kill(self) -> None:
        self.signals.append("kill")
        self.exit(-9)


class World:
    """Children, clock and reports of one supervisor."""

    def __init__(
        self,
        policy: SupervisorPolicy | None = None,
        stubborn: tuple[str, ...] = (),
        roles: tuple[str, ...] = ROLES,
    ) -> None:
        self.children: list[ScriptedChild] = []
        self.events: list[Event] = []
        self.time = 0.0
        self.no_room = 0  # for so many of the next starts
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._stubborn = stubborn
        self.supervisor = Supervisor(
            self.spawn, self.events.append, policy, roles=roles, sleep=self.sleep, now=lambda: self.time
        )
        self.running = asyncio.ensure_future(self.supervisor.run())

    async def spawn(self, role: str, on_status: Callable[[Status], None]) -> ScriptedChild:
        if self.no_room:
            self.no_room -= 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self.children.append(ScriptedChild(role, on_status, role in self._stubborn))
        return self.children[-1]

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.time + seconds, future))
        await future

    async def settle(self) -> None:
        """Lets everything run that can run without time passing."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        await self.settle()
        self.time += seconds
        for due, future in self._sleepers:
            if due <= self.time and not future.done():
                future.set_result(None)
        await self.settle()

    def live(self, role: str) -> ScriptedChild:
        return [child for child in self.children if child.role == role and not child.code.done()][-1]

    def count(self, role: str) -> int:
        return sum(child.role == role for child in self.children)

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def serve(self) -> None:
        await self.settle()
        self.live("api").ready()
        self.live("engine").ready()

    async def finish(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.running


async def test_ready_is_told_once_both_are_ready_with_url_and_seconds() -> None:
    world = World()
    await world.settle()
    world.live("api").ready()
    world.live("engine").on_status(Status("compiling programs", 1, 4))
    assert world.events == [Progress("engine", Status("compiling programs", 1, 4))]
    await world.advance(3.0)
    world.live("engine").ready()
    assert world.of(Ready) == [Ready(URL, 3.0, again=False)]
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_a_dead_engine_is_restarted_and_the_api_is_left_alone() -> None:
    world = World()
    await world.serve()
    world.live("engine").exit(-9)
    await world.advance(0.5)
    assert (world.count("engine"), world.count("api")) == (2, 1)
    await world.advance(1.5)
    world.live("engine").ready()
    assert world.of(Died) == [Died("engine", "was killed by SIGKILL; perhaps it ran out of memory", 0.5)]
    assert world.of(Ready)[-1] == Ready(URL, 2.0, again=True)
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_a_dead_api_is_restarted() -> None:
    world = World()
    await world.serve()
    world.live("api").exit(1)
    await world.advance(0.5)
    assert (world.count("engine"), world.count("api")) == (1, 2)
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_the_wait_doubles_to_its_cap_and_starts_anew_after_healthy_time() -> None:
    world = World(SupervisorPolicy(first_wait_seconds=1.0, longest_wait_seconds=4.0, healthy_seconds=60.0))
    await world.serve()
    for _ in range(4):
        world.live("engine").exit(1)
        await world.settle()
        wait = world.of(Died)[-1].restart_in  # pyright: ignore[reportAttributeAccessIssue]
        await world.advance(wait - 0.01)
        assert not [c for c in world.children if c.role == "engine" and not c.code.done()]
        await world.advance(0.01)
        world.live("engine").ready()
    await world.advance(60.0)
    world.live("engine").exit(1)
    await world.settle()
    assert [event.restart_in for event in world.events if isinstance(event, Died)] == [1.0, 2.0, 4.0, 4.0, 1.0]
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_the_wait_stays_at_its_cap_after_any_number_of_failures() -> None:
    world = World(SupervisorPolicy(first_wait_seconds=1.0, longest_wait_seconds=4.0))
    await world.serve()
    for _ in range(1030):  # 2.0**1024 is no float
        world.live("engine").exit(1)
        await world.advance(4.0)
    last = world.of(Died)[-1]
    assert isinstance(last, Died)
    assert last.restart_in == 4.0
    assert world.count("engine") == 1031
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_a_crash_loop_before_the_first_readiness_ends_with_the_last_lines() -> None:
    world = World()
    for _ in range(3):
        await world.settle()
        world.live("engine").exit(1)
        await world.advance(30.0)
    assert await world.finish() == 1
    assert world.of(GaveUp) == [GaveUp("engine", "ended with exit code 1", ("the last words of engine",))]
    assert world.count("engine") == 3
    assert all(child.code.done() for child in world.children)


async def test_a_setup_error_before_readiness_ends_at_once() -> None:
    world = World()
    await world.settle()
    world.live("api").exit(EXIT_SETUP)
    assert await world.finish() == EXIT_SETUP
    assert world.count("api") == 1
    assert all(child.code.done() for child in world.children)


async def test_a_setup_error_after_readiness_is_a_death_like_any_other() -> None:
    """A machine under load may fail a check at a restart that it passed at the start."""
    world = World()
    await world.serve()
    world.live("api").exit(EXIT_SETUP)
    await world.advance(0.5)
    assert (world.count("engine"), world.count("api")) == (1, 2)
    world.live("api").ready()
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_a_child_that_ends_with_another_host_is_never_hopeless_and_waits_longer_each_time() -> None:
    world = World()
    waits = []
    for _ in range(5):
        await world.settle()
        world.live("engine").exit(EXIT_HOST_LOST)
        await world.settle()
        died = world.of(Died)[-1]
        assert isinstance(died, Died)
        assert died.how == "ended with another host's"
        waits.append(died.restart_in)
        await world.advance(died.restart_in)
    assert waits == [0.5, 1, 2, 4, 8]
    assert not world.of(GaveUp)
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_a_follower_is_ready_by_itself_and_ends_with_its_leader() -> None:
    world = World(SupervisorPolicy(ends_with_child=True), roles=("follower",))
    await world.settle()
    world.live("follower").on_status(Status("ready", ready=True))
    assert world.of(Ready) == [Ready("", 0.0, again=False)]
    world.live("follower").exit(0)
    assert await world.finish() == 0
    assert world.count("follower") == 1


async def test_a_follower_that_is_stopped_waits_for_its_leader_as_long_as_the_drain() -> None:
    world = World(SupervisorPolicy(drain_seconds=45.0, ends_with_child=True), ("follower",), ("follower",))
    await world.settle()
    child = world.live("follower")
    world.supervisor.stop()
    await world.advance(44.0)
    assert child.signals == ["terminate"]
    await world.advance(1.0)
    assert child.signals == ["terminate", "kill"]
    assert await world.finish() == 0


async def test_stop_drains_the_api_before_it_ends_the_engine() -> None:
    world = World(stubborn=("api",))
    await world.serve()
    api, engine = world.live("api"), world.live("engine")
    world.supervisor.stop()
    await world.settle()
    assert (api.signals, engine.signals) == (["terminate"], [])
    api.exit(0)
    assert await world.finish() == 0
    assert engine.signals == ["terminate"]
    assert world.of(Stopping) == [Stopping()]


async def test_a_child_that_does_not_end_in_time_is_killed() -> None:
    world = World(SupervisorPolicy(drain_seconds=60.0, stop_seconds=10.0), stubborn=("api", "engine"))
    await world.serve()
    world.supervisor.stop()
    await world.advance(59.0)
    assert world.live("api").signals == ["terminate"]
    await world.advance(1.0)
    assert world.live("engine").signals == ["terminate"]
    await world.advance(10.0)
    assert await world.finish() == 0
    assert [child.signals for child in world.children] == [["terminate", "kill"]] * 2


async def test_a_second_stop_does_not_wait() -> None:
    world = World(stubborn=("api", "engine"))
    await world.serve()
    world.supervisor.stop()
    await world.settle()
    world.supervisor.stop()
    assert await world.finish() == 0
    assert world.time == 0.0


async def test_a_start_that_finds_no_memory_is_tried_again_and_costs_the_other_process_nothing() -> None:
    world = World()
    await world.serve()
    world.no_room = 1
    world.live("engine").exit(-9)
    await world.advance(0.5)
    assert world.count("engine") == 1
    *_, died = world.of(Died)
    assert died == Died("engine", "could not be started: [Errno 12] Cannot allocate memory", 1.0)
    await world.advance(1.0)
    assert world.count("engine") == 2
    assert not world.live("api").code.done()
    world.supervisor.stop()
    assert await world.finish() == 0


async def test_a_first_start_that_never_finds_memory_gives_up_with_the_reason() -> None:
    world = World()
    world.no_room = 1000
    for _ in range(10):
        await world.advance(30.0)
    assert await world.finish() == 1
    (gave_up,) = world.of(GaveUp)[:1]
    assert isinstance(gave_up, GaveUp)
    assert "Cannot allocate memory" in gave_up.how


async def test_stop_while_waiting_to_restart_starts_nothing() -> None:
    world = World()
    await world.serve()
    world.live("engine").exit(1)
    await world.settle()
    world.supervisor.stop()
    assert await world.finish() == 0
    assert world.count("engine") == 1


CHILD = """
import os, signal, sys, time
from serving.lifeline import Lifeline, Status

line = Lifeline(int(sys.argv[sys.argv.index("--lifeline") + 1]))
line.watch()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(f"pid {os.getpid()}", flush=True)
line.report(Status("ready", ready=True, url=sys.argv[1]))
while True:
    signal.pause()
"""


async def test_a_killed_engine_process_comes_back_and_stop_leaves_no_process() -> None:
    lines: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    events: asyncio.Queue[Event] = asyncio.Queue()

    async def spawn(role: str, on_status: Callable[[Status], None]) -> ChildProcess:
        command = [sys.executable, "-c", CHILD, URL]
        return await ChildProcess.start(command, lambda line: lines.put_nowait((role, line)), on_status)

    supervisor = Supervisor(spawn, events.put_nowait, SupervisorPolicy(first_wait_seconds=0.01))
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(PATIENCE):
        pids = {role: int(line.split()[1]) for role, line in (await lines.get(), await lines.get())}
        assert isinstance(await events.get(), Ready)
        os.kill(pids["engine"], signal.SIGKILL)
        assert isinstance(await events.get(), Died)
        role, line = await lines.get()
        assert role == "engine"
        again = await events.get()
        assert isinstance(again, Ready)
        assert again.again
        pids["engine again"] = int(line.split()[1])
        supervisor.stop()
        assert await running == 0
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

import asyncio
from collections.abc import AsyncIterator

import pytest

from serving.errors import OverloadedError, RateLimitedError
from serving.orchestrator.tools.fair_places import MOST_WAITING, FairPlaces

PATIENCE = 300.0


class Yard:
    """Programs that run until they are let go; who got a place, in order."""

    def __init__(self, most: int, most_of_tenant: int) -> None:
        self.places = FairPlaces(most, most_of_tenant, "programs")
        self.began: list[str] = []
        self.running: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, *names: str) -> None:
        """A program of each name, whose first letter is its tenant."""
        self.tasks += [asyncio.create_task(self._run(name)) for name in names]
        await self._settled()

    async def end(self, name: str) -> None:
        self.running.pop(name).set()
        await self._settled()

    async def _run(self, name: str) -> None:
        async with self.places.place(name[0], PATIENCE):
            self.began.append(name)
            ended = self.running[name] = asyncio.Event()
            await ended.wait()

    @staticmethod
    async def _settled() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    made = Yard(most=3, most_of_tenant=2)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_tenant_leaves_places_to_others_however_many_it_wants(yard: Yard) -> None:
    await yard.begin("a1", "a2", "a3", "a4")
    assert yard.began == ["a1", "a2"]
    await yard.begin("b1")
    assert yard.began == ["a1", "a2", "b1"]


async def test_whoever_has_the_fewest_is_next_and_then_the_first_comer(yard: Yard) -> None:
    await yard.begin("a1", "a2", "b1", "a3", "b2", "c1")
    await yard.end("a1")
    assert yard.began[3:] == ["c1"]  # the last to come, and the only one with nothing
    await yard.end("a2")
    assert yard.began[4:] == ["a3"]
    await yard.end("b1")
    assert yard.began[5:] == ["b2"]


async def test_the_refusal_says_whose_bound_it_was(yard: Yard) -> None:
    await yard.begin("a1", "a2")
    with pytest.raises(RateLimitedError, match="this tenant has 2 programs running, as many as one may"):
        async with yard.places.place("a", 0.0):
            raise AssertionError("there was no place")
    await yard.begin("b1")
    with pytest.raises(OverloadedError, match="3 programs are running"):
        async with yard.places.place("c", 0.0):
            raise AssertionError("there was no place")
    await yard.begin(*(f"a{number}" for number in range(3, 3 + MOST_WAITING)))
    with pytest.raises(RateLimitedError, match=f"{MOST_WAITING} more wait"):
        async with yard.places.place("a", PATIENCE):
            raise AssertionError("there was no place")


async def test_who_leaves_while_waiting_takes_no_place_with_it(yard: Yard) -> None:
    await yard.begin("a1", "a2", "a3")
    yard.tasks[2].cancel()
    await yard.end("a1")
    await yard.begin("a4", "b1")
    assert yard.began == ["a1", "a2", "a4", "b1"]

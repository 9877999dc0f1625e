import asyncio

from serving.api.engine_watch import EngineWatch
from serving.engine.client import EngineStats
from serving.errors import EngineUnavailableError
from tests.fakes.engine import ScriptedEngine


class Away(ScriptedEngine):
    asked = 0
    answers_from = 0  # the question from which on it answers

    async def stats(self) -> EngineStats:
        self.asked += 1
        await asyncio.sleep(0)
        if self.asked < self.answers_from:
            raise EngineUnavailableError("away")
        return await super().stats()


async def test_those_who_ask_at_once_share_a_question_and_who_asks_later_asks_again() -> None:
    engine = Away()
    watch = EngineWatch(engine)
    assert await asyncio.gather(*(watch.is_up() for _ in range(5))) == [True] * 5
    assert engine.asked == 1
    engine.answers_from = 10
    assert not await watch.is_up()
    assert engine.asked == 2


async def test_who_is_patient_waits_for_an_engine_that_comes_back() -> None:
    engine = Away()
    engine.answers_from = 3
    watch = EngineWatch(engine)
    assert not await watch.is_up()
    assert await watch.is_up(patience=600)

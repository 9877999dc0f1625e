"""What the board says of an engine that answers, is lost and comes back."""

from dataclasses import replace

import pytest

from serving.api.status.board import KEPT_LOOKS, StatusBoard
from serving.engine.client import EngineInfo, EngineStats
from serving.errors import EngineUnavailableError
from tests.fakes.engine import ScriptedEngine
from tests.serving.api.conftest import WINDOW, ApiMaker, chat_body

BEGAN = 1_700_000_000.0


class MeasuredEngine(ScriptedEngine):
    """Says the numbers that a test wrote down; None: it does not answer."""

    numbers: EngineStats | None = None

    async def stats(self) -> EngineStats:
        if self.numbers is None:
            raise EngineUnavailableError("away")
        return self.numbers

    async def info(self) -> EngineInfo:
        return replace(await super().info(), max_num_seqs=8)


class Bench:
    def __init__(self, make_api: ApiMaker) -> None:
        self.engine = MeasuredEngine(
            scripts=[make_api.says("hi")], vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW
        )
        self.api = make_api(engine=self.engine)
        self.time = 100.0
        self.board = StatusBoard(self.api.service, now=lambda: self.time, clock=lambda: BEGAN + self.time)

    async def look(self, seconds: float = 1.0) -> None:
        self.time += seconds
        await self.board.look()


def stats(**fields: float) -> EngineStats:
    zeros = dict.fromkeys(
        ("running", "waiting", "free_pages", "used_pages", "prefix_cache_queries", "prefix_cache_hits", "preemptions",
         "steps", "prompt_tokens", "generation_tokens", "host_seconds", "device_wait_seconds"), 0
    )  # fmt: skip
    return EngineStats(**{"started_at": BEGAN, "ready": True, **zeros, **fields})  # type: ignore[arg-type]


@pytest.fixture
def bench(make_api: ApiMaker) -> Bench:
    return Bench(make_api)


async def test_rates_are_of_the_time_between_two_looks(bench: Bench) -> None:
    for generated, seconds in ((100, 1.0), (150, 2.0), (150, 1.0)):
        bench.engine.numbers = stats(generation_tokens=generated, prompt_tokens=2 * generated)
        await bench.look(seconds)
    looks = (await bench.board.shown())["looks"]
    assert looks["output_rate"] == [None, 25.0, 0.0]
    assert looks["prompt_rate"] == [None, 50.0, 0.0]


async def test_batch_queue_and_pages_are_the_engines(bench: Bench) -> None:
    bench.engine.numbers = stats(
        running=5, waiting=4, waiting_batch=2, waiting_standard=1, used_pages=30, pinned_pages=10, free_pages=70
    )
    await bench.look()
    shown = await bench.board.shown()
    assert (shown["state"], shown["running"], shown["batch_limit"]) == ("ready", 5, 8)
    assert shown["waiting"] == {"interactive": 0, "standard": 1, "batch": 2, "other": 1}
    assert shown["pages"] == {"used": 20, "pinned": 10, "free": 70}
    assert shown["looks"]["page_share"] == [0.3]


async def test_a_restart_is_told_with_the_time_that_the_engine_was_away(bench: Bench) -> None:
    states, away = [], []
    for numbers in (None, stats(ready=False), stats(generation_tokens=900), None, None, stats(started_at=BEGAN + 50)):
        bench.engine.numbers = numbers
        await bench.look()
        shown = await bench.board.shown()
        states.append(shown["state"])
        away.append(shown["away_seconds"])
    assert states == ["starting", "starting", "ready", "away", "away", "ready"]
    assert away == [None, None, None, 0.0, 1.0, None]
    shown = await bench.board.shown()
    assert shown["restarts"] == [{"time": BEGAN + 50, "away_seconds": 2.0}]
    assert shown["looks"]["output_rate"] == [None, None, 900.0, None, None, None], (
        "a counter that began again is no rate"
    )


async def test_an_engine_that_was_silent_and_is_the_same_has_not_restarted(bench: Bench) -> None:
    for numbers in (stats(), None, stats()):
        bench.engine.numbers = numbers
        await bench.look()
    assert (await bench.board.shown())["restarts"] == []


async def test_draining_is_said_before_all_else(bench: Bench) -> None:
    bench.engine.numbers = stats()
    bench.api.service.gateway.drain()
    assert (await bench.board.shown())["state"] == "draining"


async def test_the_board_keeps_two_minutes_and_looks_when_nobody_has(bench: Bench) -> None:
    bench.engine.numbers = stats()
    assert len((await bench.board.shown())["looks"]["running"]) == 1
    for _ in range(KEPT_LOOKS + 5):
        await bench.look()
    bench.time += 60
    assert len((await bench.board.shown())["looks"]["running"]) == KEPT_LOOKS


async def test_latencies_and_refusals_are_those_of_the_requests(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    await api.post("/v1/chat/completions", chat_body())
    await api.post("/v1/chat/completions", chat_body(temperature="hot"))
    shown = (await api.get("/status.json")).json()
    assert shown["first_token"][0] > 0
    assert shown["between_tokens"][1] >= shown["between_tokens"][0] > 0
    assert shown["refusals"] == {"invalid_value": 1}

"""A few hundred clients of every kind, and then nothing is left of them. `scripts/soak.py` does this for longer."""

import asyncio
import gc
import os
from dataclasses import dataclass
from pathlib import Path

import httpx

from scripts.durability.visitors import VISITS, failures, visit_all
from serving.api.generation import Generation
from serving.api.service import StreamLimits
from serving.api.sse import EventStream
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.limits import ExecutorLimits
from serving.engine.local import LocalEngine, Stream, start_local_engine
from serving.engine.plan import StepPlan, StepResult
from serving.engine.request import Priority
from serving.engine.sequence import Sequence
from serving.sessions.generation_log import LogLimits
from serving.sessions.generation_log_sqlite import SqliteGenerationLog
from serving.sessions.live_generation import LiveGeneration
from tests.fakes.paged_device import PagedDevice
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.listening import listening

PATIENCE = 300.0  # seconds; only a broken test waits that long
PAGES, PAGE_SIZE, ROWS, TOKENS = 96, 8, 8, 64
VISITS_EACH = 15
OF_A_REQUEST = (Generation, EventStream, LiveGeneration, Stream)


@dataclass
class Collected:
    result: StepResult

    def collect(self) -> StepResult:
        return self.result


class PagedExecutor:
    """A device that checks every page it is shown."""

    limits = ExecutorLimits(
        max_num_seqs=ROWS, max_model_len=256, page_size=PAGE_SIZE, num_pages=PAGES, token_buckets=(TOKENS,)
    )
    vocab_size, programs_compiled = 256, 0

    def __init__(self) -> None:
        self._device = PagedDevice(num_pages=PAGES, page_size=PAGE_SIZE, num_rows=ROWS, max_tokens=TOKENS)

    def dispatch(self, plan: StepPlan) -> Collected:
        return Collected(self._device.run(plan))


def kept(*kinds: type) -> int:
    gc.collect()
    return sum(isinstance(thing, kinds) for thing in gc.get_objects())


async def until_quiet(engine: LocalEngine, tasks: int, files: int) -> None:
    """Until nothing of a request is left, and its connection is closed; a leak is waited for in vain."""
    while (
        (await engine.stats()).running
        or len(asyncio.all_tasks()) > tasks
        or kept(*OF_A_REQUEST)
        or open_files() > files
    ):
        await asyncio.sleep(0.05)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_clients_of_every_kind_leave_nothing_behind(make_api: ApiMaker, tmp_path: Path) -> None:
    model = ModelConfig(checkpoint=tmp_path)
    deployment = Deployment(name="paged", model=model, engine=EngineConfig(max_waiting=1024))
    engine = start_local_engine(deployment, PagedExecutor(), startup_seconds=0.0)  # type: ignore[arg-type]
    log = SqliteGenerationLog(tmp_path / "streams.sqlite", LogLimits(max_bytes=64 << 10))
    api = make_api(engine=engine, log=log, streams=StreamLimits())  # type: ignore[arg-type]
    gc.freeze()  # what other tests left is theirs
    async with asyncio.timeout(PATIENCE), listening(api.app) as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
            await visit_all(http, len(VISITS), at_once=4, tokens=8)  # imports, pools and caches are filled
        tasks, files = len(asyncio.all_tasks()), open_files()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
            happened = await visit_all(http, VISITS_EACH * len(VISITS), at_once=16, tokens=12, seed=1)
        assert failures(happened) == {}
        assert sum(happened.values()) == VISITS_EACH * len(VISITS)
        await until_quiet(engine, tasks, files)
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.used_pages) == (0, 0, 0)
        assert stats.free_pages == PAGES
        assert api.service.slots.open == 0
        assert api.service.durable.running == ()
        assert api.service.gateway.leases == []
        assert kept(Sequence) <= len(Priority)  # the one of each class that the scheduler watches
        assert open_files() <= files
        assert (tmp_path / "streams.sqlite").stat().st_size < 1 << 20
    gc.unfreeze()
    await engine.close()

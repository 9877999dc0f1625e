"""Whatever tier a prefix comes from, a stream has the same tokens: the real pool, programs, threads and files."""

import dataclasses
import threading
from pathlib import Path

import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.request import GenerateRequest
from serving.engine.scheduler import Scheduler
from serving.engine.tiers.copier import PageCopier
from serving.engine.tiers.exchange import PageExchange
from serving.engine.tiers.host_pages import HostPages
from serving.engine.tiers.moves import Tier
from serving.engine.tiers.page_files import PageFiles
from serving.engine.tiers.page_tiers import PageTiers
from tests.fakes.tiny_model import MAX_MODEL_LEN, PAGE_SIZE, VOCAB_SIZE, tiny_executor
from tests.serving.engine.test_same_tokens import SAMPLING, Run, assert_same, request

PATIENCE = 120.0
DEVICE_PAGES = 32


@pytest.fixture(scope="module")
def exchange() -> PageExchange:
    return tiny_executor().page_exchange()


class TieredRun:
    """An engine with few pages, host memory for `host_pages` more, and perhaps a folder."""

    def __init__(self, exchange: PageExchange, *, host_pages: int = 256, folder: Path | None = None) -> None:
        files = None if folder is None else PageFiles(folder, b"0123456789abcdef", exchange.form.num_bytes)
        self.tiers = PageTiers(
            PageCopier(exchange, HostPages(exchange.form, host_pages), files),
            device_pages=DEVICE_PAGES,
            host_pages=host_pages,
            page_bytes=exchange.form.num_bytes,
            disk_pages=0 if files is None else 512,
            on_disk=() if files is None else files.scan(),
        )
        self.pool = BlockPool(DEVICE_PAGES, PAGE_SIZE, lower=self.tiers)
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=8,
            max_num_batched_tokens=128,
            max_waiting=100,
            pool=self.pool,
            vocab_size=VOCAB_SIZE,
            tiers=self.tiers,
        )
        self.loop = EngineLoop(self.scheduler, tiny_executor(), now=lambda: 0.0, tiers=self.tiers)
        self.cached: dict[str, int | None] = {}
        self._news = threading.Event()
        self.tiers.call_on_news(self._news.set)

    def tokens(self, *requests: GenerateRequest) -> dict[str, list[int]]:
        made: dict[str, list[int]] = {one.request_id: [] for one in requests}
        for one in requests:
            self.scheduler.add(one, 0.0)
        while not self.loop.idle:
            for event in self.loop.step():
                made[event.request_id] += event.token_ids
                if event.cached_tokens is not None:
                    self.cached[event.request_id] = event.cached_tokens
            if self.loop.stalled:
                assert self._news.wait(PATIENCE)
                self._news.clear()
        return made

    def settle(self) -> None:
        """Until all copies that were begun are done."""
        self.loop.tend()
        while self.tiers.is_copying:
            assert self._news.wait(PATIENCE)
            self._news.clear()
            self.loop.tend()

    def flood(self) -> None:
        """Takes every page of the device for other streams."""
        for number in range(3):
            self.tokens(request("greedy", f"flood-{number}-{len(self.cached)}", 200 + number))
        self.settle()


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    return {kind: Run().tokens(request(kind))["watched"] for kind in SAMPLING}


def again(kind: str, number: int) -> GenerateRequest:
    return dataclasses.replace(request(kind), request_id=f"again-{number}")


@pytest.mark.parametrize("kind", SAMPLING)
def test_a_prefix_that_comes_from_host_memory(kind: str, exchange: PageExchange, alone: dict[str, list[int]]) -> None:
    run = TieredRun(exchange)
    assert_same(kind, alone[kind], run.tokens(request(kind))["watched"])
    run.flood()
    assert_same(kind, alone[kind], run.tokens(again(kind, 1))["again-1"])
    assert run.cached["again-1"] == 32
    assert run.tiers.counters[Tier.HOST].hit_tokens == 32
    run.tiers.close()


def test_a_prefix_that_comes_from_disk_after_a_restart(
    exchange: PageExchange, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    before = TieredRun(exchange, folder=tmp_path)
    before.tokens(request("seeded"))
    before.settle()
    before.tiers.close()
    after = TieredRun(exchange, folder=tmp_path)
    for kind in ("seeded", "greedy", "penalised"):  # the same prompt
        name = f"after-{kind}"
        made = after.tokens(dataclasses.replace(request(kind), request_id=name))
        assert_same(kind, alone[kind], made[name])
    assert [after.cached[f"after-{kind}"] for kind in ("seeded", "greedy", "penalised")] == [32, 32, 32]
    assert after.tiers.counters[Tier.DISK].hit_tokens == 32  # the others found it on the device
    after.tiers.close()


def test_a_damaged_file_costs_its_page_and_those_behind_it(
    exchange: PageExchange, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    before = TieredRun(exchange, folder=tmp_path)
    before.tokens(request("seeded"))
    before.settle()
    sequence = next(iter(before.tiers.on_disk))  # the first page of the prompt was the first to be written
    before.tiers.close()
    (path,) = tmp_path.rglob(f"{sequence.hex()}.page")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    after = TieredRun(exchange, folder=tmp_path)
    assert_same("seeded", alone["seeded"], after.tokens(again("seeded", 1))["again-1"])
    assert after.cached["again-1"] == 0
    assert after.tiers.counters[Tier.DISK].damaged == 1
    after.settle()
    after.flood()
    assert_same("seeded", alone["seeded"], after.tokens(again("seeded", 2))["again-2"])
    assert after.cached["again-2"] == 32
    after.tiers.close()


def test_a_preempted_stream_finds_its_pages_below(exchange: PageExchange, alone: dict[str, list[int]]) -> None:
    run = TieredRun(exchange)
    others = [dataclasses.replace(request("greedy", f"other-{i}", 60 + i)) for i in range(5)]
    made = run.tokens(*others, request("seeded"))
    assert run.scheduler.stats.preemptions > 0, "nothing was preempted, so nothing was shown"
    assert_same("seeded", alone["seeded"], made["watched"])
    run.tiers.close()

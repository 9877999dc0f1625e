"""What each tier of the prefix cache gains, and costs where nothing is ever found:
`python -m scripts.bench_prefix_cache [--rounds N] [--folder DIR]`.

The real engine loop, threads and files around a Llama of four small layers with random weights, on the devices of this
machine. The device has pages for a third to a half of what a workload computes. The clock, the engine's too, counts
this process's CPU seconds, all threads together, so that the copies are counted and other processes are not; what
waiting for a disk takes is therefore not in it.

What the tiers cost at no hits is told twice: by whole runs beside runs without them, which differ by more than the cost
on most machines, and by the seconds that the engine's thread spends in their own code. Where no page is copied, as the
last column says, their threads sleep and that is all of it.
"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from models import llama
from pallas_kernels.dispatch import attention_body
from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from serving.engine.tiers.copier import PageCopier
from serving.engine.tiers.exchange import PageExchange
from serving.engine.tiers.host_pages import HostPages
from serving.engine.tiers.moves import Tier
from serving.engine.tiers.page_files import PageFiles
from serving.engine.tiers.page_tiers import PageTiers
from serving.engine.tiers.restores import Restores

USERS = 4  # requests that are open at once
PAGE, PAGES = 16, 320
WINDOW = 2048
BUCKETS = (4, 64, 256)
VOCAB_SIZE = 512
MANY, FEW = 4096, 128  # pages of host memory: more than any workload has, and too few for any
FINGERPRINT = b"bench of prefix."
CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
}

# All that the engine's thread calls of the tiers.
SEAMS = {
    PageTiers: ("run_moves", "published", "evicted"),
    Restores: ("begin_plan", "must_wait", "admitted"),
}

Talk = Iterator[list[int]]  # what is added to a context before each answer


@dataclass(frozen=True)
class Setting:
    name: str
    caching: bool = True
    host_pages: int = 0
    disk: bool = False


OFF = Setting("off", caching=False)
DEVICE = Setting("device")
HOST = Setting("device, host", host_pages=MANY)
DISK = Setting("device, few host, disk", host_pages=FEW, disk=True)
RESTARTED = Setting("the same, restarted", host_pages=FEW, disk=True)


@dataclass
class Outcome:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_tokens: list[float] = field(default_factory=list)  # seconds from the request to it
    seconds: float = 0.0
    from_host: int = 0  # tokens
    from_disk: int = 0
    copied: int = 0  # pages, to and from both tiers
    inside: float = 0.0  # seconds in SEAMS, of `seconds`


class Meter:
    """CPU seconds of the calling thread in SEAMS, while it is entered; with the meter's own, a microsecond a call."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_inside = False
        self._patches = ExitStack()

    def __enter__(self) -> "Meter":
        for owner, names in SEAMS.items():
            for name in names:
                timed = self._timed(getattr(owner, name))
                self._patches.enter_context(mock.patch.object(owner, name, timed))
        return self

    def __exit__(self, *raised: object) -> None:
        self._patches.close()

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            if self._is_inside:
                return call(*arguments)
            self._is_inside, begin = True, time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.thread_time() - begin
                self._is_inside = False

        return timed


class Bench:
    def __init__(self) -> None:
        config = llama.parse(CONFIG)
        limits = ExecutorLimits(
            max_num_seqs=USERS, max_model_len=WINDOW, page_size=PAGE, num_pages=PAGES, token_buckets=BUCKETS
        )
        model = llama.build(config, jnp.dtype("float32"), layers="list")
        self.executor = Executor(model, llama.shape(config), limits, attention_body("reference"), jnp.dtype("float32"))
        self.exchange: PageExchange = self.executor.page_exchange()

    def run(
        self, setting: Setting, talks: list[Talk], answer: int, folder: Path, before: list[Talk] | None = None
    ) -> Outcome:
        """Every talk to its end, USERS of them at a time; the one that waited longest is next. What comes `before` is
        not measured."""
        tiers = self._tiers(setting, folder) if setting.host_pages else None
        scheduler = Scheduler(
            max_model_len=WINDOW,
            max_num_seqs=USERS,
            max_num_batched_tokens=BUCKETS[-1],
            max_waiting=1024,
            pool=BlockPool(PAGES, PAGE, prefix_caching=setting.caching, lower=tiers),
            vocab_size=VOCAB_SIZE,
            token_buckets=BUCKETS,
            tiers=tiers,
        )
        loop = EngineLoop(scheduler, self.executor, now=time.process_time, tiers=tiers)
        news = threading.Event()
        if tiers is not None:
            tiers.call_on_news(news.set)
        if before is not None:
            self._talk(loop, deque(before), answer, news)
        copied = _copied(tiers)
        begin = time.process_time()
        with Meter() as meter:
            outcome = self._talk(loop, deque(talks), answer, news)
        outcome.seconds, outcome.inside = time.process_time() - begin, meter.seconds
        if tiers is not None:
            outcome.from_host = tiers.counters[Tier.HOST].hit_tokens
            outcome.from_disk = tiers.counters[Tier.DISK].hit_tokens
            outcome.copied = _copied(tiers) - copied
            tiers.close()
        return outcome

    def _talk(self, loop: EngineLoop, waiting: deque[Talk], answer: int, news: threading.Event) -> Outcome:
        outcome, numbers = Outcome(), itertools.count()
        open_talks: dict[str, tuple[Talk, list[int], float]] = {}
        contexts: dict[int, list[int]] = {}
        while waiting or open_talks:
            while waiting and len(open_talks) < USERS:
                talk = waiting.popleft()
                added = next(talk, None)
                if added is not None:
                    context = contexts.setdefault(id(talk), [])
                    context += added
                    name = str(next(numbers))
                    open_talks[name] = talk, context, time.process_time()
                    sampling = SamplingParams(temperature=0.0, max_tokens=answer)
                    loop.scheduler.add(
                        GenerateRequest(request_id=name, prompt_token_ids=tuple(context), sampling=sampling),
                        loop.now(),
                    )
            for event in loop.step():
                talk, context, begun = open_talks[event.request_id]
                if event.cached_tokens is not None:
                    outcome.first_tokens.append(time.process_time() - begun)
                    outcome.prompt_tokens += len(context)
                    outcome.cached_tokens += event.cached_tokens
                context += event.token_ids
                outcome.output_tokens += len(event.token_ids)
                if event.finish_reason is not None:
                    del open_talks[event.request_id]
                    waiting.append(talk)
            if loop.stalled:
                news.wait(1.0)
                news.clear()
        return outcome

    def _tiers(self, setting: Setting, folder: Path) -> PageTiers:
        form = self.exchange.form
        files = PageFiles(folder, FINGERPRINT, form.num_bytes) if setting.disk else None
        return PageTiers(
            PageCopier(self.exchange, HostPages(form, setting.host_pages), files, clock=time.thread_time),
            device_pages=PAGES,
            host_pages=setting.host_pages,
            page_bytes=form.num_bytes,
            disk_pages=MANY if files is not None else 0,
            on_disk=() if files is None else files.scan(),
        )


def tokens(draw: Random, count: int) -> list[int]:
    return [draw.randrange(VOCAB_SIZE) for _ in range(count)]


def shared_prefixes() -> list[Talk]:
    """Twelve long system prompts, each asked about four times, in turns."""
    draw = Random(1)
    systems = [tokens(draw, 768) for _ in range(12)]
    return [iter([[*system, *tokens(draw, 48)]]) for _ in range(4) for system in systems]


def conversations() -> list[Talk]:
    """Twelve conversations of four turns each, in turns."""
    draw = Random(2)
    return [iter([tokens(draw, 300) for _ in range(4)]) for _ in range(12)]


def agents() -> list[Talk]:
    """Eight agents with one system prompt, whose contexts grow by a tool's result before each short answer."""
    draw = Random(3)
    system = tokens(draw, 512)
    return [iter([[*system, *tokens(draw, 64)], *(tokens(draw, 128) for _ in range(7))]) for _ in range(8)]


def strangers(seed: int = 4) -> list[Talk]:
    """Nobody has anything in common with anybody."""
    draw = Random(seed)
    return [iter([tokens(draw, 640)]) for _ in range(24)]


WORKLOADS = {
    "shared prefixes": (shared_prefixes, 16),
    "conversations": (conversations, 24),
    "agents": (agents, 16),
}


def _copied(tiers: PageTiers | None) -> int:
    counters = () if tiers is None else tiers.counters.values()
    return sum(each.pages_in + each.pages_out for each in counters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs for the cost at no hits")
    parser.add_argument("--only-cost", action="store_true", help="at no hits, and no workloads")
    parser.add_argument("--folder", type=Path, help="for page files; a temporary one by default")
    arguments = parser.parse_args()
    console, bench = Console(width=140), Bench()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench.run(HOST, strangers()[:2], 8, Path(folder))
        table = Table("workload", "tiers", "hits", "of host", "of disk", "first token, median, p90 (ms)", "tokens/s")
        workloads = {} if arguments.only_cost else WORKLOADS
        for name, (talks, answer) in workloads.items():
            for setting in (OFF, DEVICE, HOST, DISK, RESTARTED):
                outcome = bench.run(setting, talks(), answer, Path(folder) / name)
                table.add_row(name, setting.name, *_cells(outcome))
        console.print(table)
        console.print(_cost(bench, arguments.rounds, Path(folder)))


def _cells(outcome: Outcome) -> list[str]:
    first = sorted(outcome.first_tokens)
    total = outcome.prompt_tokens
    shares = (outcome.cached_tokens, outcome.from_host, outcome.from_disk)
    return [
        *(f"{share / total:.0%}" for share in shares),
        f"{1e3 * statistics.median(first):.0f}, {1e3 * first[int(len(first) * 0.9)]:.0f}",
        f"{(total + outcome.output_tokens) / outcome.seconds:.0f}",
    ]


def _cost(bench: Bench, rounds: int, folder: Path) -> Table:
    """Each setting between two runs of the device alone, whose mean it is compared with."""
    table = Table(
        "no hits", "runs", "seconds to those of the device alone: median", "least", "most", "in tiers' code", "copied"
    )
    for setting in (OFF, HOST, DISK):
        ratios, shares, copied = [], [], 0
        before = bench.run(DEVICE, strangers(), 8, folder, strangers(5)).seconds
        for number in range(rounds):
            outcome = bench.run(setting, strangers(), 8, folder / f"{setting.name}-{number}", strangers(5))
            after = bench.run(DEVICE, strangers(), 8, folder, strangers(5)).seconds
            copied = max(copied, outcome.copied)
            shares.append(outcome.inside / outcome.seconds)
            ratios.append(outcome.seconds / ((before + after) / 2))
            before = after
        shown = (f"{ratio:.3f}" for ratio in (statistics.median(ratios), min(ratios), max(ratios)))
        share = f"{statistics.median(shares):.2%}, at most {max(shares):.2%}"
        table.add_row(setting.name, str(rounds), *shown, share, f"{copied} pages")
    return table


if __name__ == "__main__":
    main()

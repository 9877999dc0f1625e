"""Faults while durable streams run: `python -m scripts.check_faults [--streams N] [--tokens N] [--only NAME ...]`.

Each fault meets a real `weft serve` of the demo, with streams whose tokens are known from an undisturbed run of the
same seeds. For each it prints the streams lost, the events repeated and missing, the tokens that differ (and, apart,
the ties of two tokens within rounding that fell the other way), whether a reader who comes afterwards gets the same
bytes, and the longest pause that a stream saw after the fault.

It needs redis-server and libfaketime, and stops and kills only processes that it started.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from scripts.durability.leaping_clock import LeapingClock
from scripts.durability.rounding_ties import compare
from scripts.durability.served import Served, served
from scripts.durability.stream_reader import Received, read_once, read_through
from scripts.flags import flags_of

PATH = "/v1/completions"
STOPPED_SECONDS = 5.0
FULL_SECONDS = 3.0
DURABLE_SECONDS = 120.0
DISK_BYTES = 64 << 10

Fault = Callable[["Scene"], Awaitable[None]]


@dataclass(slots=True)
class Scene:
    server: Served
    redis: "RedisProcess | None"
    http: httpx.AsyncClient
    clock: LeapingClock
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    fault: str
    streams: int
    lost: int
    repeated: int
    missing: int
    differing: int  # tokens
    ties: int  # within rounding, at which a stream took the other token
    reread: int  # streams whose bytes a later reader got otherwise
    median_pause: float
    longest_pause: float


class RedisProcess:
    """Keeps its data on disk as it comes, as a log's Redis should."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder / 'redis.sock'}"
        self.start()

    def start(self) -> None:
        options = "--port 0 --unixsocket redis.sock --dir . --appendonly yes --appendfsync everysec --save".split()
        command = ["redis-server", *options, ""]
        self.process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        path = self._folder / "redis.sock"
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(path))
                    return
                except OSError:
                    time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


async def kill_engine(scene: Scene) -> None:
    os.kill(scene.server.child("engine"), signal.SIGKILL)


async def kill_api(scene: Scene) -> None:
    os.kill(scene.server.child("api"), signal.SIGKILL)


async def kill_both(scene: Scene) -> None:
    os.kill(scene.server.child("api"), signal.SIGKILL)
    os.kill(scene.server.child("engine"), signal.SIGKILL)


async def kill_redis(scene: Scene) -> None:
    assert scene.redis is not None
    scene.redis.kill()
    await asyncio.sleep(2.0)
    await asyncio.to_thread(scene.redis.start)


async def kill_redis_then_api(scene: Scene) -> None:
    """The API process dies after Redis is back and has been written anew: until then readers are told that what they
    read is not durable."""
    await kill_redis(scene)
    await all_durable(scene)
    await kill_api(scene)


async def all_durable(scene: Scene) -> None:
    deadline = time.monotonic() + DURABLE_SECONDS
    while time.monotonic() < deadline:
        undurable, mended = await asyncio.gather(
            *(
                asyncio.to_thread(scene.server.metric, "weft_durable_streams_total", label=f'event="{event}"')
                for event in ("undurable", "mended")
            )
        )
        if mended >= undurable > 0:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"not all streams were durable again within {DURABLE_SECONDS:g} seconds")


async def stop_engine(scene: Scene) -> None:
    pid = scene.server.child("engine")
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(STOPPED_SECONDS)
    os.kill(pid, signal.SIGCONT)


async def leap_in_time(scene: Scene) -> None:
    """The date of every process of the server leaps an hour ahead, two hours back, and to where it was."""
    for hours in (1, -1, 0):
        scene.clock.leap_to(3600 * hours)
        await asyncio.sleep(2.0)


async def fill_disk(scene: Scene) -> None:
    pid = scene.server.child("api")
    before = _disk_fills(pid)
    await asyncio.sleep(FULL_SECONDS)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def fill_disk_and_kill_api(scene: Scene) -> None:
    """The API process dies while its readers are ahead of the log."""
    pid = scene.server.child("api")
    _disk_fills(pid)
    await asyncio.sleep(FULL_SECONDS)
    os.kill(pid, signal.SIGKILL)


def _disk_fills(pid: int) -> tuple[int, int]:
    """No file of the process may grow beyond a few pages: what a full disk does. Gives what was allowed before."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    return resource.prlimit(pid, resource.RLIMIT_FSIZE, (DISK_BYTES, most))


async def bad_clients(scene: Scene) -> None:
    """Beside the good ones: clients that never read, and clients that vanish with a reset."""
    host, port = scene.server.url.removeprefix("http://").split(":")
    body = b'{"prompt":[5],"max_tokens":400,"ignore_eos":true,"stream":true,"durable":true}'
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    for number in range(8):
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head.encode() + body)
            if number % 2:  # it vanishes; the others are held open, unread
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                _HALF_OPEN.append(client.dup())
    await asyncio.sleep(1.0)


async def readers_leave(scene: Scene) -> None:
    """Nothing but what every stream of this fault does: its reader leaves after every tenth event."""


_HALF_OPEN: list[socket.socket] = []

SQLITE, REDIS, MEMORY = "sqlite", "redis", "memory"
FAULTS: dict[str, tuple[str, Fault]] = {
    "engine killed": (MEMORY, kill_engine),
    "API process killed, SQLite": (SQLITE, kill_api),
    "API process killed, Redis": (REDIS, kill_api),
    "API process and engine killed, SQLite": (SQLITE, kill_both),
    "Redis killed, back after 2 s": (REDIS, kill_redis),
    "Redis killed, back, then the API process killed": (REDIS, kill_redis_then_api),
    f"engine stopped for {STOPPED_SECONDS:g} s": (MEMORY, stop_engine),
    "the date leaps an hour ahead, then back, memory": (MEMORY, leap_in_time),
    "the date leaps an hour ahead, then back, SQLite": (SQLITE, leap_in_time),
    "the date leaps an hour ahead, then back, Redis": (REDIS, leap_in_time),
    f"disk full for {FULL_SECONDS:g} s, SQLite": (SQLITE, fill_disk),
    "disk full, and the API process killed, SQLite": (SQLITE, fill_disk_and_kill_api),
    "clients that never read or vanish": (MEMORY, bad_clients),
    "readers that leave after every tenth event": (MEMORY, readers_leave),
}


def body_of(number: int, tokens: int) -> dict[str, Any]:
    return {
        "prompt": [7 + number % 50, 11, 13],
        "max_tokens": tokens,
        "seed": number,
        "temperature": 1.0,
        "ignore_eos": True,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


async def run_streams(scene: Scene, fault: Fault | None) -> tuple[list[Received], float]:
    """All streams to their ends, with the fault once every stream has begun. When it was made, too."""

    async def one(number: int) -> Received:
        body = body_of(number, scene.tokens)
        if fault is readers_leave:
            got = Received()
            while not got.ended and got.failure is None:
                await read_once(scene.http, PATH, body, got, most=10)
            return got
        return await read_through(scene.http, PATH, body)

    running = [asyncio.create_task(one(number)) for number in range(scene.streams)]
    started = scene.server.metric("vllm:generation_tokens_total")
    while fault is not None:
        made = await asyncio.to_thread(scene.server.metric, "vllm:generation_tokens_total") - started
        if made > scene.streams * scene.tokens / 5:
            break
        await asyncio.sleep(0.1)
    moment = time.monotonic()
    if fault is not None:
        await fault(scene)
    return await asyncio.gather(*running), moment


async def check(name: str, scene: Scene, fault: Fault, expected: dict[int, list[int]]) -> Outcome:
    got, moment = await run_streams(scene, fault)
    while _HALF_OPEN:
        _HALF_OPEN.pop().close()
    reread = 0
    for one in got:
        again = Received(stream_id=one.stream_id)
        while not again.ended and again.failure is None:
            with contextlib.suppress(httpx.TransportError):  # the process that was killed is not back yet
                await read_once(scene.http, PATH, {}, again)
        reread += again.events != one.events
    ties = differing = 0
    for number, one in enumerate(got):
        fell, places = await compare(scene.http, PATH, body_of(number, scene.tokens), expected[number], one.token_ids)
        ties, differing = ties + fell, differing + len(places)
        if places:
            print(f"{name}: stream {number} has other tokens from position {places[0]} on", file=sys.stderr)
    pauses = [one.pause_after(moment) for one in got]
    return Outcome(
        fault=name,
        streams=len(got),
        lost=sum(not one.ended for one in got),
        repeated=sum(one.repeated for one in got),
        missing=sum(one.missing for one in got),
        differing=differing,
        ties=ties,
        reread=reread,
        median_pause=statistics.median(pauses),
        longest_pause=max(pauses),
    )


@contextmanager
def log_table(kind: str) -> Iterator[tuple[Path, str, RedisProcess | None]]:
    """A folder, what the deployment says of its log, and its Redis."""
    with tempfile.TemporaryDirectory(prefix="weft-faults-") as name:
        folder = Path(name)
        if kind != REDIS:
            yield folder, f'log = "{kind}"' + ('\npath = "streams.sqlite"' if kind == SQLITE else ""), None
            return
        redis = RedisProcess(folder)
        try:
            yield folder, f'log = "redis"\nredis = "{redis.url}"', redis
        finally:
            redis.kill()


def main() -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="at once (default: %(default)d)")
    parser.add_argument("--tokens", type=int, default=400, metavar="N", help="of each (default: %(default)d)")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(FAULTS), help="these faults alone")
    args = parser.parse_args()
    if shutil.which("redis-server") is None or shutil.which("faketime") is None:
        parser.error("redis-server and faketime are needed")
    console = Console()
    outcomes: list[Outcome] = []
    for kind in (MEMORY, SQLITE, REDIS):
        chosen = {name: fault for name, (log, fault) in FAULTS.items() if log == kind and name in (args.only or FAULTS)}
        if chosen:
            outcomes += asyncio.run(check_all(kind, chosen, args.streams, args.tokens, console))
    console.print(table_of(outcomes))
    return int(any(o.lost or o.repeated or o.missing or o.differing or o.reread for o in outcomes))


async def check_all(kind: str, faults: dict[str, Fault], streams: int, tokens: int, console: Console) -> list[Outcome]:
    outcomes: list[Outcome] = []
    port = free_port()
    with contextlib.ExitStack() as stack:
        folder, log, redis = stack.enter_context(log_table(kind))
        clock = LeapingClock(folder)
        server = stack.enter_context(served(folder, log, streams=32, port=port, environment=clock.environment))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
            scene = Scene(server, redis, http, clock, streams, tokens)
            expected = {number: one.token_ids for number, one in enumerate((await run_streams(scene, None))[0])}
            for name, fault in faults.items():
                outcomes.append(await check(name, scene, fault, expected))
                console.print(outcomes[-1])
    return outcomes


def free_port() -> int:
    """The API process must come back where it was."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def table_of(outcomes: list[Outcome]) -> Table:
    table = Table("fault", "streams", "lost", "repeated", "missing")
    for column in ("tokens differing", "rounding ties", "reread otherwise", "pause, s"):
        table.add_column(column)
    for one in outcomes:
        counts = (one.streams, one.lost, one.repeated, one.missing, one.differing, one.ties, one.reread)
        table.add_row(one.fault, *map(str, counts), f"{one.median_pause:.1f} / {one.longest_pause:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())

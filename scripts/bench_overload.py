"""A server at many times its capacity: `python -m scripts.bench_overload [--times 10] [--seconds 60]`.

It starts a server of the demo (or of another deployment), finds its capacity with as many clients as it has rows, each
asking again when it was answered, and then sends requests as they come (Poisson arrivals) at the capacity and at many
times of it, whether they are answered or not. A refused client does not come back. It prints, for each load:

    TTFT       of those that were let in: from the connection to the first text
    refusal    of the others: from the connection to the end of the answer
    goodput    output tokens per second of answers whose first text came within the bound (--target), by thirds of time
    memory     resident megabytes of the API process and of the engine, at the beginning and at the end
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.flags import flags_of

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 600.0
ANSWER_SECONDS = 300.0
THIRDS = 3
PROMPTS = ("Tell me about the sea.", "What is two plus three?", "Write a line about bread.", "Name a colour.")


@dataclass(slots=True)
class Answer:
    begin: float  # seconds since the load began
    status: int = 0
    code: str = ""
    first: float | None = None  # seconds to the first text
    whole: float = 0.0
    tokens: int = 0
    retry_after: int | None = None


@dataclass(slots=True)
class Load:
    name: str
    seconds: float
    offered: float | None  # requests per second; None: as fast as they are answered
    answers: list[Answer] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)  # API, engine; megabytes

    @property
    def accepted(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status == 200 and not answer.code]

    @property
    def refused(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status in (429, 503)]

    @property
    def broken(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status not in (200, 429, 503) or answer.code == "stream"]

    def goodput(self, target: float, third: int | None = None) -> float:
        low, high = (
            (0.0, self.seconds)
            if third is None
            else (
                self.seconds * third / THIRDS,
                self.seconds * (third + 1) / THIRDS,
            )
        )
        good = [answer for answer in self.accepted if answer.first is not None and answer.first <= target]
        return sum(answer.tokens for answer in good if low <= answer.begin + answer.whole < high) / (high - low)


async def ask(port: int, body: bytes, begin: float) -> Answer:
    """One request on a connection of its own, as strangers make them."""
    start = time.monotonic()
    answer = Answer(start - begin)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode() + body)
                await _read(reader, answer, start)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        answer.code = type(error).__name__
    answer.whole = time.monotonic() - start
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer, start: float) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    answer.status = int(head.split(" ", 2)[1])
    for line in head.split("\r\n"):
        if line.startswith("retry-after:"):
            answer.retry_after = int(line.partition(":")[2])
    if answer.status != 200:
        answer.code = json.loads((await reader.read()).partition(b"{")[2].join((b"{", b"")))["error"]["code"]
        return
    ended = False
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            ended = True
        elif b'"content":"' in line and b'"content":""' not in line:
            answer.first = answer.first or time.monotonic() - start
        elif b'"usage":{' in line:
            answer.tokens = json.loads(line[6:])["usage"]["completion_tokens"]
    answer.code = "" if ended else "stream"


def body_of(draw: random.Random, model: str, tokens: int) -> bytes:
    """Each prompt is another, so that the prefix cache is of no help."""
    content = f"{draw.choice(PROMPTS)} {draw.randrange(10**9)}"
    message = {"role": "user", "content": content}
    return json.dumps(
        {
            "model": model,
            "messages": [message],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


async def closed(port: int, model: str, clients: int, seconds: float, tokens: int, server: int) -> Load:
    """So many clients, each asking again when it was answered."""
    load, begin, draw = Load("capacity", seconds, None), time.monotonic(), random.Random(1)

    async def client() -> None:
        while time.monotonic() - begin < seconds:
            load.answers.append(await ask(port, body_of(draw, model, tokens), begin))

    async with MemoryWatch(load, server):
        await asyncio.gather(*(client() for _ in range(clients)))
    return load


async def arriving(port: int, model: str, load: Load, tokens: int, server: int) -> Load:
    draw, begin = random.Random(2), time.monotonic()
    assert load.offered is not None
    asked: set[asyncio.Task[Answer]] = set()
    due = 0.0
    async with MemoryWatch(load, server):
        while due < load.seconds:
            await asyncio.sleep(max(0.0, begin + due - time.monotonic()))
            asked.add(asyncio.create_task(ask(port, body_of(draw, model, tokens), begin)))
            due += draw.expovariate(load.offered)
        load.answers = list(await asyncio.gather(*asked))
    return load


class MemoryWatch:
    """Once a second, as long as the block lasts."""

    def __init__(self, load: Load, server: int) -> None:
        self._load = load
        self._server = server

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            found = dict(children_of(self._server))
            self._load.memory.append((found.get("api", 0.0), found.get("engine", 0.0)))
            await asyncio.sleep(1.0)


def children_of(pid: int) -> Iterator[tuple[str, float]]:
    """(role, resident megabytes) of the supervisor's processes. Linux."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
        role = words[words.index("serving") + 1] if "serving" in words else words[0]
        yield role, pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def served(deployment: str, target: float) -> Iterator[tuple[int, int]]:
    """(port, the supervisor's process id) of a server with the target as its bound on the predicted wait."""
    source = (
        Path(deployment) if deployment.endswith(".toml") else ROOT / "configs" / "deployments" / f"{deployment}.toml"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=source.parent, prefix=".overload-") as written:
        written.write(f"{source.read_text()}\n[admission]\nstandard_seconds = {target:g}\n")
        written.flush()
        command = [sys.executable, "-m", "serving", "serve", written.name, f"--port={port}"]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            try:
                _wait_until_ready(port, process)
                yield port, process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the server did not become ready")


def quantile(values: Sequence[float], share: float) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.2f}"


def shown(loads: Sequence[Load], target: float) -> Table:
    table = Table(*("load", "offered/s", "in", "refused", "broken", "TTFT p50/p95 s", "within target"))
    for column in ("refusal p50/p99 s", "goodput tok/s", "by thirds", "API MB", "engine MB"):
        table.add_column(column)
    for load in loads:
        first = [answer.first for answer in load.accepted if answer.first is not None]
        refusals = [answer.whole for answer in load.refused]
        good = sum(value <= target for value in first)
        table.add_row(
            load.name,
            f"{len(load.answers) / load.seconds:.1f}",
            str(len(load.accepted)),
            str(len(load.refused)),
            str(len(load.broken)),
            f"{quantile(first, 0.5)} / {quantile(first, 0.95)}",
            f"{good / max(len(first), 1):.1%}",
            f"{quantile(refusals, 0.5)} / {quantile(refusals, 0.99)}",
            f"{load.goodput(target):.0f}",
            " ".join(f"{load.goodput(target, third):.0f}" for third in range(THIRDS)),
            f"{load.memory[0][0]:.0f} .. {load.memory[-1][0]:.0f}",
            f"{load.memory[0][1]:.0f} .. {load.memory[-1][1]:.0f}",
        )
    return table


async def measure(args: argparse.Namespace, port: int, server: int) -> list[Load]:
    await closed(port, args.model, args.rows, 5.0, args.tokens, server)  # not counted: everything once
    knee = await closed(port, args.model, args.rows, args.seconds / 2, args.tokens, server)
    capacity = len([a for a in knee.accepted if a.begin + a.whole <= knee.seconds]) / knee.seconds
    loads = [knee]
    for times in (1.0, args.times):
        load = Load(f"{times:g}x", args.seconds, times * capacity)
        loads.append(await arriving(port, args.model, load, args.tokens, server))
    return loads


def main() -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--deployment", default="demo")
    parser.add_argument("--model", default="weft-demo", help="its name")
    parser.add_argument("--rows", type=int, default=16, help="its max_num_seqs")
    parser.add_argument("--times", type=float, default=10.0, metavar="X")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each load")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="of each answer")
    parser.add_argument("--target", type=float, default=3.0, metavar="S", help="to the first text")
    args = parser.parse_args()
    console = Console(width=200)
    with served(args.deployment, args.target) as (port, server):
        loads = asyncio.run(measure(args, port, server))
    console.print(shown(loads, args.target))
    for load in loads:
        codes = Counter(answer.code for answer in load.answers if answer.code)
        told = [answer.retry_after for answer in load.refused if answer.retry_after is not None]
        retry = f", Retry-After {min(told)} .. {max(told)} s, median {statistics.median(told):g}" if told else ""
        console.print(f"{load.name}: {dict(codes) or 'nothing refused'}{retry}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

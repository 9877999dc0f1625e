"""What the front door costs over the bare engine, beside a LiteLLM proxy:
`python -m scripts.bench_front_door [--litellm FOLDER] [--requests N] [--runs N]`.

The engine is a process that draws no tokens of its own: every stream gets one each 20 ms, so that what is measured is
what stands before it. Its streams are read in three ways, by the same client:

    bare      over the engine's own socket
    weft      an API process of the demo deployment: admission, tokenizer, chat format, detokenizer, events
    litellm   a LiteLLM proxy (FOLDER is a virtual environment with litellm[proxy]), with weft's API as its upstream

Costs are CPU seconds of the process in question and its children, so that other load on the machine hardly counts:
streams of two lengths give what a request and what a token costs. Of LiteLLM it is the proxy alone, without its
upstream.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.flags import flags_of
from serving.bench.stream_client import StreamClient
from serving.child_process import ChildProcess
from serving.commands.argument_types import count
from serving.config import load_deployment
from serving.engine.client import EngineInfo
from serving.engine.remote import RemoteEngine
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from serving.engine.server import EngineServer
from serving.lifeline import Status
from tests.fakes.mortal_engine import MortalEngine

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "deployments" / "demo.toml"
PROMPT = "Tell me about the sea, and about what lives in it."
TOKEN = 300  # a piece of a word in the demo's vocabulary
VOCAB_SIZE = 8192
STEP_SECONDS = 0.02
STREAMS = 8  # at a time
SHORT, LONG, USUAL = 8, 136, 128  # tokens
PATIENCE = 120.0

Ask = Callable[[int], Awaitable[float]]  # tokens -> seconds to the first of them


class SteadyEngine(MortalEngine):
    """All streams take their steps together."""

    def __init__(self) -> None:
        super().__init__()
        self._step = asyncio.Event()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            self._step.set()
            self._step = asyncio.Event()

    async def info(self) -> EngineInfo:
        facts = await super().info()
        return EngineInfo(**{**{name: getattr(facts, name) for name in facts.__slots__}, "vocab_size": VOCAB_SIZE})

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        for position in range(request.sampling.max_tokens):
            if position:
                await self._step.wait()
            last = position == request.sampling.max_tokens - 1
            yield TokenEvent(
                request_id=request.request_id,
                token_ids=(TOKEN,),
                finish_reason=FinishReason.LENGTH if last else None,
                cached_tokens=None if position else 0,
                queue_seconds=None if position else 0.0,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one way to the engine. CPU seconds are those of `pid`, None for the bare engine."""

    name: str
    first: float  # seconds to the first token, one stream at a time
    request: float | None  # CPU seconds of a request without its tokens
    token: float | None

    @property
    def streams_per_core(self) -> float | None:
        """Of the usual length, that one core has time for in a second."""
        if self.request is None or self.token is None:
            return None
        return 1 / (self.request + USUAL * self.token)


async def measured(name: str, ask: Ask, pid: int | None, requests: int) -> Cost:
    for _ in range(3):  # connections, caches
        await ask(SHORT)
    first = statistics.median([await ask(2) for _ in range(requests // 4)])
    short, long = [await _cpu(ask, pid, tokens, requests) for tokens in (SHORT, LONG)]
    token = (long - short) / (LONG - SHORT)
    costs = (None, None) if pid is None else (short - SHORT * token, token)
    return Cost(name=name, first=first, request=costs[0], token=costs[1])


async def _cpu(ask: Ask, pid: int | None, tokens: int, requests: int) -> float:
    """CPU seconds of a request of so many tokens."""
    before = cpu_seconds(pid)
    left = itertools.count()

    async def client() -> None:
        while next(left) < requests:
            await ask(tokens)

    await asyncio.gather(*(client() for _ in range(STREAMS)))
    return (cpu_seconds(pid) - before) / requests


def cpu_seconds(pid: int | None) -> float:
    """Of the process and of those that it started, while they live."""
    if pid is None:
        return 0.0
    fields = {int(path.parent.name): _fields(path) for path in Path("/proc").glob("[0-9]*/stat")}
    family = [pid]
    for one in family:  # it grows as it is walked
        family += [child for child, stat in fields.items() if stat and int(stat[1]) == one]
    ticks = sum(int(fields[one][11]) + int(fields[one][12]) for one in family if fields.get(one))
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(path: Path) -> list[str]:
    """After the command's name, from the state on; none of a process that has just ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def bare(engine: RemoteEngine) -> Ask:
    numbers = itertools.count()

    async def ask(tokens: int) -> float:
        request = GenerateRequest(
            request_id=str(next(numbers)),
            prompt_token_ids=tuple(range(300, 330)),
            sampling=SamplingParams(max_tokens=tokens, temperature=0.0),
        )
        begin, first = time.perf_counter(), 0.0
        async with aclosing(engine.generate(request)) as events:
            async for _ in events:
                first = first or time.perf_counter() - begin
        return first

    return ask


def over_http(url: str, model: str) -> Ask:
    client = StreamClient(url, {"authorization": "Bearer sk-bench"})

    async def ask(tokens: int) -> float:
        message = {"role": "user", "content": PROMPT}
        body = {"model": model, "messages": [message], "max_tokens": tokens, "temperature": 0.0, "stream": True}
        begin, times = time.perf_counter(), list[float]()

        def seen(at: float, data: bytes) -> None:
            if b'"content":"' in data and b'"content":""' not in data:
                times.append(at)

        reply = await client.post("/v1/chat/completions", json.dumps(body).encode(), seen)
        assert reply.status == 200, reply
        assert times, "no token came"
        return times[0] - begin

    return ask


@asynccontextmanager
async def engine_process(folder: Path) -> AsyncIterator[Path]:
    path = folder / "private" / "engine.sock"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "scripts.bench_front_door", f"--engine={path}")
    try:
        yield path
    finally:
        process.kill()
        await process.wait()


async def serve_engine(path: Path) -> None:
    engine = SteadyEngine()
    server = EngineServer(engine, path)
    await server.start()
    await engine.run()


@asynccontextmanager
async def api_process(folder: Path, path: Path) -> AsyncIterator[tuple[str, int]]:
    checkpoint = load_deployment(DEMO).model.checkpoint
    file = folder / "deployment.toml"
    file.write_text(f'name = "weft-demo"\n[model]\ncheckpoint = "{checkpoint}"\n[server]\nport = 0\n')
    statuses: asyncio.Queue[Status] = asyncio.Queue()
    command = [sys.executable, "-m", "serving", "api", str(file), f"--socket={path}"]
    child = await ChildProcess.start(command, lambda line: None, statuses.put_nowait)
    try:
        url = (await asyncio.wait_for(statuses.get(), PATIENCE)).url
        await until_answered(f"{url}/health/ready")
        yield url, child.pid
    finally:
        child.kill()
        await child.wait()


@asynccontextmanager
async def litellm_process(folder: Path, environment: Path, upstream: str) -> AsyncIterator[tuple[str, int]]:
    config = {
        "model_list": [
            {
                "model_name": "weft-demo",
                "litellm_params": {"model": "openai/weft-demo", "api_base": f"{upstream}/v1", "api_key": "sk-bench"},
            }
        ],
        "general_settings": {"master_key": "sk-bench"},
    }
    (folder / "litellm.yaml").write_text(json.dumps(config))  # YAML is a superset of JSON
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        environment / "bin" / "litellm",
        *("--config", folder / "litellm.yaml", "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await until_answered(f"{url}/health/liveliness")
        yield url, process.pid
    finally:
        process.kill()
        await process.wait()


async def until_answered(url: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(urllib.request.urlopen, url)
            return
        assert time.monotonic() < deadline, f"{url} does not answer"
        await asyncio.sleep(0.1)


async def compare(litellm: Path | None, requests: int) -> list[Cost]:
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="weft-door-") as name:
        folder = Path(name)
        async with engine_process(folder) as path, api_process(folder, path) as (url, pid):
            engine = RemoteEngine(path)
            costs.append(await measured("bare", bare(engine), None, requests))
            await engine.close()
            costs.append(await measured("weft", over_http(url, "weft-demo"), pid, requests))
            if litellm is not None:
                async with litellm_process(folder, litellm, url) as (proxy, proxy_pid):
                    costs.append(await measured("litellm", over_http(proxy, "weft-demo"), proxy_pid, requests))
    return costs


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--litellm", type=Path, help="a virtual environment with litellm[proxy]")
    parser.add_argument("--requests", type=count, default=128, help="of each kind")
    parser.add_argument("--runs", type=count, default=3)
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)  # the child's
    args = parser.parse_args(argv)
    if args.engine is not None:
        asyncio.run(serve_engine(args.engine))
        return 0
    runs = [asyncio.run(compare(args.litellm, args.requests)) for _ in range(args.runs)]
    table = Table(
        "way", "first token, ms", "CPU a request, ms", "CPU a token, us", f"streams of {USUAL} a second a core"
    )
    for costs in zip(*runs, strict=True):
        table.add_row(
            costs[0].name,
            f"{1e3 * statistics.median(cost.first for cost in costs):.2f}",
            *(
                _median([getattr(cost, name) for cost in costs], scale)
                for name, scale in (("request", 1e3), ("token", 1e6), ("streams_per_core", 1))
            ),
        )
    Console(highlight=False).print(table)
    return 0


def _median(values: Sequence[float | None], scale: float) -> str:
    known = [value for value in values if value is not None]
    return f"{scale * statistics.median(known):.2f}" if known else "-"


if __name__ == "__main__":
    sys.exit(main())

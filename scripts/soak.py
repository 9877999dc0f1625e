"""A day of clients in minutes: `python -m scripts.soak [--visits N] [--rounds N] [--log memory|sqlite]`.

Requests, streams that are left, durable streams that are left and come back to, cancelled and shared ones;
conversations with memory, tools, batches, gRPC, and vector stores where scripts/fetch_encoder has been run; against a
`weft serve` of the demo. After each round, and once it is quiet, it looks at both processes: memory, open files,
threads; at what the server says of itself: open streams, running requests, pages in use; and at what it keeps: rows and
bytes of SQLite, but for the ledger, which is a record. The first half of the rounds warms the server up: lists, caches
and stores fill to their bounds. Growth is counted from there. Deleted responses and ended batches are retained for a
quarter of an hour, and forgotten within ten minutes more.

Two hours of a server that is asked twice a second are 14,400 visits, of the thirteen kinds in turn; with as many before
them: `--rounds 16 --visits 1800`.
"""

import argparse
import asyncio
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from scripts.durability.keeping_visitors import PATIENCE, every_visit
from scripts.durability.served import ROOT, Served, served
from scripts.durability.visitors import failures, visit_all
from scripts.flags import flags_of

ENCODER = ROOT / ".build" / "encoder"
TABLES = """
[conversations]
store = "sqlite"
path = "conversations.sqlite"
retain_days = 0.01
[memory]
path = "memory.sqlite"
strategy = "selective"
[tools]
calculator = true
[files]
folder = "kept"
retain_batch_days = 0.01
max_tenant_batches = {at_once}
[usage]
ledger = "{ledger}"
[admission]
interactive_seconds = {patience}
standard_seconds = {patience}
batch_seconds = {patience}
"""
LEDGER = "usage.sqlite"
STORES = """
[embeddings]
checkpoint = "{encoder}"
name = "encoder"
[retrieval]
folder = "stores"
"""
RETAIN_SECONDS = 60  # of ended streams; a machine that stands still for less loses no reader
GRACE_SECONDS = 30
TRIM_SECONDS = 15.0  # within which what is retained no longer goes
QUIET_SECONDS = 600.0  # at most, until the last stream that was left has ended
GROWTH = 1.05  # of memory over the second half of the rounds, that is still noise


@dataclass(frozen=True, slots=True)
class Look:
    """The server at rest."""

    api_mib: float
    engine_mib: float
    api_files: int
    engine_files: int
    api_threads: int
    open_streams: float
    running: float
    used_pages: float
    rows: int
    kept_mib: float
    visits: int
    seconds: float


def look(server: Served, folder: Path, visits: int, seconds: float) -> Look:
    api, engine = server.child("api"), server.child("engine")
    return Look(
        api_mib=_mib(api),
        engine_mib=_mib(engine),
        api_files=_files(api),
        engine_files=_files(engine),
        api_threads=_threads(api),
        open_streams=server.metric("weft_open_streams"),
        running=server.metric("vllm:num_requests_running"),
        used_pages=server.metric("weft_used_pages"),
        rows=_rows(folder).total(),
        kept_mib=_kept_mib(folder),
        visits=visits,
        seconds=round(seconds, 1),
    )


def wait_until_quiet(server: Served) -> None:
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        if server.metric("weft_open_streams") == server.metric("vllm:num_requests_running") == 0:
            return
        time.sleep(0.2)


def main() -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--visits", type=int, default=2000, metavar="N", help="of each round (default: %(default)d)")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="(default: %(default)d)")
    parser.add_argument("--at-once", type=int, default=48, metavar="N", help="visits (default: %(default)d)")
    parser.add_argument("--tokens", type=int, default=40, metavar="N", help="at most, of one visit")
    parser.add_argument("--log", choices=("memory", "sqlite"), default="sqlite", help="of the streams")
    args = parser.parse_args()
    looks, failed = asyncio.run(soak(args))
    table = Table(*(name.replace("_", " ") for name in asdict(looks[0])))
    for one in looks:
        table.add_row(*(f"{value:g}" for value in asdict(one).values()))
    Console().print(table, failed or "no visit failed")
    return int(bool(failed) or has_grown(looks))


async def soak(args: argparse.Namespace) -> tuple[list[Look], dict[str, int]]:
    looks: list[Look] = []
    has_encoder = ENCODER.is_dir()
    tables = TABLES.format(at_once=args.at_once, ledger=LEDGER, patience=PATIENCE) + (
        STORES.format(encoder=ENCODER) if has_encoder else ""
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        grpc_port = free.getsockname()[1]
    kinds = every_visit(f"127.0.0.1:{grpc_port}", stores=has_encoder)
    failed: dict[str, int] = {}
    # Few bytes and seconds are kept, so that the log is at its bounds all the time.
    log = (
        f'log = "{args.log}"\nretain_seconds = {RETAIN_SECONDS}\nmax_bytes = 4_194_304\ngrace_seconds = {GRACE_SECONDS}'
    )
    with tempfile.TemporaryDirectory(prefix="weft-soak-") as folder:
        path = '\npath = "streams.sqlite"' if args.log == "sqlite" else ""
        flags = (f"--grpc-port={grpc_port}",)
        with served(Path(folder), log + path, tables=tables, flags=flags) as server:
            limits = httpx.Limits(max_connections=None)
            for number in range(args.rounds):
                begin = time.monotonic()
                # Closed before the look: idle connections are files of the server's.
                async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as http:
                    happened = await visit_all(
                        http, args.visits, at_once=args.at_once, tokens=args.tokens, seed=number, kinds=kinds
                    )
                for name, count in failures(happened).items():
                    failed[name] = failed.get(name, 0) + count
                await asyncio.to_thread(wait_until_quiet, server)
                await asyncio.sleep(RETAIN_SECONDS + TRIM_SECONDS)
                looks.append(look(server, Path(folder), args.visits, time.monotonic() - begin))
                Console().print(looks[-1], dict(_rows(Path(folder))))
    return looks, failed


def has_grown(looks: list[Look]) -> bool:
    first, last = looks[(len(looks) - 1) // 2], looks[-1]
    memory = max(last.api_mib / first.api_mib, last.engine_mib / first.engine_mib)
    counts = (last.api_files > first.api_files + 4, last.engine_files > first.engine_files + 4)
    return memory > GROWTH or any(counts) or last.open_streams + last.running + last.used_pages > 0


def _rows(folder: Path) -> Counter[str]:
    """By file and table: of all but the ledger, which is a record and grows, and the inside of full-text indices."""
    count: Counter[str] = Counter()
    for path in folder.rglob("*.sqlite"):
        if path.name == LEDGER:
            continue
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            names = [name for name in names if not name.startswith(("sqlite_", "words_"))]
            for name in names:
                count[f"{path.stem}.{name}"] += db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
    return +count


def _kept_mib(folder: Path) -> float:
    """Without the ledger."""
    kept = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(LEDGER))
    return round(sum(path.stat().st_size for path in kept) / 2**20, 2)


def _mib(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


if __name__ == "__main__":
    sys.exit(main())

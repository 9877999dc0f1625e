"""Measures the engine in this process, with no server: all requests at once, greedy, each to its full length."""

import argparse
import asyncio
import dataclasses

import msgspec
from rich.console import Console

from serving.bench import offline
from serving.bench.workload import Workload
from serving.commands.argument_types import new_file
from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.progress_bar import progress_bar
from serving.commands.workload_flags import add_workload_flags, measured_items, warm_up_items, workload_from
from serving.engine.client import Engine

NAME = "offline"
SUMMARY = "an engine, in this process"
_WARMUPS = 2


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=False)
    add_workload_flags(parser)
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write every number")


def run(args: argparse.Namespace) -> int:
    from serving.app import build_engine  # here, because only some commands should wait for JAX

    deployment, workload, console = deployment_from(args), workload_from(args), Console()
    with console.status("loading the model"):
        engine = build_engine(deployment)
    result = asyncio.run(_measure(engine, workload, args.seed, console))
    for name, value in dataclasses.asdict(result).items():
        shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
        console.print(f"{name.replace('_', ' '):<26}{shown:>16}", highlight=False)
    if args.json is not None:
        record = {"deployment": deployment.name, "seed": args.seed, "workload": workload, "result": result}
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    return 0


async def _measure(engine: Engine, workload: Workload, seed: int, console: Console) -> offline.OfflineResult:
    wanted = measured_items(workload, seed)
    try:
        await offline.measure(engine, warm_up_items(workload, _WARMUPS), lambda _: None)
        with progress_bar(console, "tokens", sum(item.output_len for item in wanted)) as advance:
            return await offline.measure(engine, wanted, advance)
    finally:
        await engine.close()

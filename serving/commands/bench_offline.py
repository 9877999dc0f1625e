"""Measures the engine in this process, with no server: all requests at once, greedy, each to its full length."""

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence

import msgspec
from rich.console import Console

from serving.bench import offline
from serving.bench.workload import Item
from serving.commands.argument_types import new_file
from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.progress_bar import progress_bar
from serving.commands.result_file import write_result
from serving.commands.workload_flags import add_workload_flags, measured_items, warm_up_items, workload_from
from serving.config import Deployment
from serving.engine.client import Engine

NAME = "offline"
SUMMARY = "an engine, in this process"
_WARMUPS = 2


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=False)
    add_workload_flags(parser)
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write every number")


def run(args: argparse.Namespace) -> int:
    from serving.app import build_engine, window_of  # here, because only some commands should wait for JAX

    deployment, workload, console = _with_room(deployment_from(args), args.num_prompts), workload_from(args), Console()
    warm_up, wanted = warm_up_items(workload, _WARMUPS), measured_items(workload, args.seed)
    offline.refuse_unfitting([*warm_up, *wanted], window_of(deployment))  # before the minutes of loading
    with console.status("loading the model"):
        engine = build_engine(deployment)
    result = asyncio.run(_measure(engine, warm_up, wanted, console))
    for name, value in dataclasses.asdict(result).items():
        shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
        console.print(f"{name.replace('_', ' '):<26}{shown:>16}", highlight=False)
    if args.json is not None:
        record = {"deployment": deployment.name, "seed": args.seed, "workload": workload, "result": result}
        write_result(args.json, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    return 0


def _with_room(deployment: Deployment, requests: int) -> Deployment:
    """The queue is bounded against strangers; here all requests come at once, and are its owner's. Each data shard has
    its part of the queue, and one shard may get them all."""
    most = max(deployment.engine.max_waiting, requests * deployment.mesh.data)
    return dataclasses.replace(deployment, engine=dataclasses.replace(deployment.engine, max_waiting=most))


async def _measure(
    engine: Engine, warm_up: Sequence[Item], wanted: Sequence[Item], console: Console
) -> offline.OfflineResult:
    try:
        await offline.measure(engine, warm_up, lambda _: None)
        with progress_bar(console, "tokens", sum(item.output_len for item in wanted)) as advance:
            return await offline.measure(engine, wanted, advance)
    finally:
        await engine.close()

"""Measures any OpenAI-compatible server over HTTP: throughput, latencies, goodput, errors."""

import argparse
import dataclasses
from collections.abc import Mapping

import msgspec
import uvloop
from rich.console import Console

from serving.bench import load, report
from serving.bench.picture import picture
from serving.bench.stream_client import StreamClient
from serving.bench.summary import Slo, summarize
from serving.bench.target import Target
from serving.bench.workload import Workload
from serving.commands.argument_types import (
    count,
    count_or_none,
    json_object,
    new_file,
    positive,
    sendable,
    server_url,
    svg,
)
from serving.commands.bearer_key import BEARER_KEY_VARIABLE, key_headers
from serving.commands.progress_bar import progress_bar
from serving.commands.result_file import write_result
from serving.commands.workload_flags import add_workload_flags, measured_items, warm_up_items, workload_from
from serving.errors import EngineError, SetupError

NAME = "serve"
SUMMARY = "a server, over HTTP"
_MOST_WARMUPS = 8
_WARMUPS_AT_ONCE = 64  # where the run itself has no bound


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=server_url,
        required=True,
        help=f"http://host:port, with or without /v1; {BEARER_KEY_VARIABLE} holds the key, where one is needed",
    )
    parser.add_argument("--model", type=sendable, required=True, help="the model id that the server knows")
    add_workload_flags(parser)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=positive, metavar="R", help="requests per second, Poisson arrivals")
    pace.add_argument("--concurrency", type=count, metavar="N", help="streams open at once (default: all)")
    parser.add_argument(
        "--text-prompts", action="store_true", help="chat in words, for a server that takes no token ids"
    )
    parser.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="fields to add to each request's body"
    )
    parser.add_argument("--warmups", type=count_or_none, metavar="N", help="requests before the run (default: up to 8)")
    parser.add_argument("--timeout", type=positive, default=600.0, metavar="S", help="for one request (default: 600)")
    parser.add_argument("--slo-ttft-ms", type=positive, metavar="MS", help="objective for the first token")
    parser.add_argument("--slo-itl-ms", type=positive, metavar="MS", help="objective for the mean time between tokens")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write every number")
    parser.add_argument("--picture", type=svg, metavar="FILE.svg", help="draw the distributions and the throughput")


def run(args: argparse.Namespace) -> int:
    if args.text_prompts and args.token_ids is not None:
        raise SetupError("--text-prompts sends words: --token-ids would have no effect", param="token_ids")
    if args.json is not None and args.picture is not None and args.json.resolve() == args.picture.resolve():
        raise SetupError(f"--json and --picture are both {args.picture}: name two files", param="picture")
    workload = dataclasses.replace(
        workload_from(args), rate=args.rate, concurrency=args.concurrency, text_prompts=args.text_prompts
    )
    slo = Slo(args.slo_ttft_ms, args.slo_itl_ms)
    console = Console()
    measured = uvloop.run(_measure(args, workload, key_headers(), console))
    summary = summarize(measured, slo)
    console.print(report.table(summary, slo))
    for kind in summary.errors:
        detail = next(m.detail for m in measured.measured if m.error == kind)
        console.print(f"{kind}: {detail}", markup=False, highlight=False, soft_wrap=True)
    if args.json is not None:
        record = report.record(summary, workload, slo, url=args.url, model=args.model, seed=args.seed)
        write_result(args.json, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    if args.picture is not None:
        write_result(args.picture, picture(measured, f"{args.model}: {_title(workload)}").encode())
    return 0 if summary.completed == summary.requests else 1


async def _measure(
    args: argparse.Namespace, workload: Workload, headers: Mapping[str, str], console: Console
) -> load.Run:
    client = StreamClient(args.url, headers)
    target = Target(
        client,
        args.model,
        text_prompts=args.text_prompts,
        timeout_seconds=args.timeout,
        extra_body=args.extra_body,
    )
    wanted = measured_items(workload, args.seed)
    warmups = min(_MOST_WARMUPS, args.concurrency or args.num_prompts) if args.warmups is None else args.warmups
    try:
        at_once = workload.concurrency or _WARMUPS_AT_ONCE
        warm_up = await load.drive(target.run, warm_up_items(workload, warmups), at_once)
        failed = next((m for m in warm_up.measured if m.error is not None), None)
        if failed is not None:
            raise EngineError(f"a warm-up request failed: {failed.error}: {failed.detail}")
        with progress_bar(console, "requests", len(wanted)) as advance:
            return await load.drive(target.run, wanted, workload.concurrency, lambda _: advance(1))
    finally:
        await client.close()


def _title(workload: Workload) -> str:
    if workload.rate is not None:
        pace = f"{workload.rate:g} requests/s"
    else:
        pace = f"{workload.concurrency or workload.num_prompts} streams"
    prefix = f" + {workload.shared_prefix_len} shared" if workload.shared_prefix_len else ""
    return f"{workload.num_prompts} requests, {pace}, {workload.input_len}{prefix} in, {workload.output_len} out"

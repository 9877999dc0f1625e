"""Step traces: record the steps of an engine that runs, and replay them here, with its weights or with random ones.

A trace has no text, but every token id of the prompts and answers of its time: keep it as you keep those.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Column, Table

from serving.commands.admin_client import AdminClient, add_admin_flags
from serving.commands.api_key_flag import API_KEY_VARIABLE
from serving.commands.operate import print_facts
from serving.engine.step_trace import TraceHeader, TraceReader
from serving.errors import RequestError

if TYPE_CHECKING:
    from serving.engine.replay import ReplayedStep

EXIT_OTHER_TOKENS = 1


def add_parser(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="{start,stop,replay}")
    start = verbs.add_parser("start", help="begin to record, into a file of the server's operations.traces")
    add_admin_flags(start)
    start.add_argument("name", metavar="NAME", help="of the trace")
    start.set_defaults(verb=lambda args: _ask(args, "start", {"name": args.name}))
    stop = verbs.add_parser("stop", help="end the recording")
    add_admin_flags(stop)
    stop.set_defaults(verb=lambda args: _ask(args, "stop", {}))
    again = verbs.add_parser("replay", help="run a trace's steps on this machine, without a server")
    again.add_argument("trace", type=Path, metavar="FILE")
    weights = again.add_mutually_exclusive_group(required=True)
    weights.add_argument("--model", type=Path, metavar="DIR", help="the checkpoint that was served: the same tokens")
    weights.add_argument("--random-weights", action="store_true", help="of the same shapes: for times alone")
    again.add_argument("--each", action="store_true", help="a line for each step; default: for each kind and size")
    again.set_defaults(verb=_replay)


def run(args: argparse.Namespace) -> int:
    return args.verb(args)


def _ask(args: argparse.Namespace, what: str, body: dict[str, str]) -> int:
    with AdminClient(args.url, os.environ.get(API_KEY_VARIABLE)) as client:
        print_facts(client.post(f"/v1/engine/trace/{what}", body))
    return 0


def _replay(args: argparse.Namespace) -> int:
    """1 where the weights are the same and some tokens are not."""
    with TraceReader(args.trace) as trace:
        if args.random_weights:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "config.json").write_bytes(msgspec.json.encode(trace.header.config))
                steps = _replayed(trace, Path(folder), random_weights=True)
        else:
            _check_weights(trace.header, args.model)
            steps = _replayed(trace, args.model, random_weights=False)
    console = Console(highlight=False)
    console.print(each_step(steps) if args.each else by_size(steps))
    if args.random_weights:
        return 0
    other = sum(step.same_tokens is False for step in steps)
    print(f"{len(steps)} steps, {other} with other tokens than were recorded")
    return EXIT_OTHER_TOKENS if other else 0


def _replayed(trace: TraceReader, checkpoint: Path, *, random_weights: bool) -> "list[ReplayedStep]":
    from serving.engine.device import load_executor  # here, because it loads JAX
    from serving.engine.replay import deployment_of, replay

    deployment = deployment_of(trace.header, checkpoint)
    assert deployment.engine.max_model_len is not None
    executor = load_executor(deployment, deployment.engine.max_model_len, random_weights=random_weights)
    return replay(executor, trace.records())


def _check_weights(header: TraceHeader, checkpoint: Path) -> None:
    from serving.engine.weights_fingerprint import weights_fingerprint

    if header.weights and (found := weights_fingerprint(checkpoint)) != header.weights:
        raise RequestError(
            f"{checkpoint} has weights {found}, and the trace was recorded with {header.weights}: name that one, "
            "or take --random-weights, for times alone",
            param="model",
        )


def each_step(steps: "Sequence[ReplayedStep]") -> Table:
    table = _table("step", "kind", "tokens", "streams", "rounds", "recorded ms", "here ms", "tokens drawn")
    words = {None: "-", True: "same", False: "other"}
    for step in steps:
        table.add_row(
            str(step.number),
            step.kind,
            str(step.tokens),
            str(step.sequences),
            str(step.rounds),
            _milliseconds([step.recorded_seconds]),
            _milliseconds([step.seconds]),
            words[step.same_tokens],
        )
    return table


def by_size(steps: "Sequence[ReplayedStep]") -> Table:
    """Medians of steps of one kind and one power of two of tokens."""
    groups: dict[tuple[str, int, int], list[ReplayedStep]] = {}
    for step in steps:
        groups.setdefault((step.kind, step.rounds, (step.tokens - 1).bit_length()), []).append(step)
    table = _table("kind", "rounds", "tokens up to", "steps", "recorded ms", "here ms", "here, slowest")
    for (kind, rounds, bits), group in sorted(groups.items()):
        table.add_row(
            kind,
            str(rounds),
            str(1 << bits),
            str(len(group)),
            _milliseconds([step.recorded_seconds for step in group]),
            _milliseconds([step.seconds for step in group]),
            f"{max(step.seconds for step in group) * 1000:.2f}",
        )
    return table


def _table(*names: str) -> Table:
    return Table(*(Column(name, justify="left" if name in ("kind", "tokens drawn") else "right") for name in names))


def _milliseconds(seconds: "Sequence[float | None]") -> str:
    known = [value for value in seconds if value is not None]
    return f"{statistics.median(known) * 1000:.2f}" if known else "-"

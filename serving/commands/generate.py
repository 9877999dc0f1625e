"""Runs a file of prompts through the engine in this process, and writes a file of answers.

Input: one JSON object a line, with "messages", "prompt" or "prompt_token_ids", an optional "id", and any sampling
parameter of the HTTP API. Output: one JSON object a line in the order of completion. Run it again to go on where it was
interrupted.
"""

import argparse
import asyncio
import time
from pathlib import Path

from rich.console import Console

from serving.batch_file import BatchFile
from serving.commands.argument_types import count
from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.progress_bar import progress_bar
from serving.errors import ConfigError
from serving.offline import BatchGenerator


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=False)
    parser.add_argument("--input", type=Path, required=True, metavar="FILE.jsonl", help="the prompts")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl", help="the answers")
    parser.add_argument("--concurrency", type=count, default=256, metavar="N", help="requests open at once")


def run(args: argparse.Namespace) -> int:
    """1 where a line failed."""
    from serving.app import build_engine, build_generator  # here, because only some commands should wait for JAX

    deployment, console = deployment_from(args), Console(soft_wrap=True)
    if not args.input.is_file():
        raise ConfigError(f"--input {args.input}: there is no such file", param="input")
    if args.output.exists() and args.output.samefile(args.input):  # it would be repaired, as a torn output is
        raise ConfigError(f"--output {args.output}: it is the input; name another file", param="output")
    with BatchFile(args.output) as output:
        total = _lines(args.input) - len(output.finished)
        with console.status("loading the model"):
            engine = build_engine(deployment)
        generator = BatchGenerator(build_generator(deployment, engine), concurrency=args.concurrency)

        async def main() -> tuple[int, int, int]:
            try:
                return await write_all(generator, args.input, output, console, total)
            finally:
                await engine.close()

        start = time.perf_counter()
        done, failed, tokens = asyncio.run(main())
    seconds = time.perf_counter() - start
    console.print(
        f"{done} answered, {failed} failed, {len(output.finished)} already there; "
        f"{tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.1f} tokens/s",
        highlight=False,
    )
    return 1 if failed else 0


async def write_all(
    generator: BatchGenerator, source: Path, output: BatchFile, console: Console, total: int
) -> tuple[int, int, int]:
    """Records answered, records failed, tokens generated."""
    done = failed = tokens = 0
    start = time.perf_counter()
    with source.open("rb") as lines, progress_bar(console, "requests", total) as progress:
        async for record in generator.run(lines, skip=output.finished):
            output.append(record)
            if "error" in record:
                failed += 1
                console.print(f"line {record['line']}: {record['error']['message']}", style="red", markup=False)
            else:
                done += 1
                tokens += record["usage"]["completion_tokens"]
            progress(1, f"{tokens / (time.perf_counter() - start):,.0f} tokens/s")
    return done, failed, tokens


def _lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)

"""What a turn costs above the bare generator, on the API's side: `python -m scripts.bench_turn [--runs N]`.

Both render, count and check the same prompt with the demo's tokenizer and template, and read answers that are there at
once; the turn fits the context as well, reads calls out of the text and makes events of it. Medians of --runs.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from rich.console import Console
from rich.table import Table

from scripts.demo_generator import demo_generator
from serving.commands.argument_types import count
from serving.engine.request import FinishReason
from serving.generation.generator import Generator
from serving.generation.request import TextDelta, TextRequest, Usage
from serving.orchestrator.control_tokens import ControlTokens
from serving.orchestrator.tools.toolbox import Toolbox
from serving.orchestrator.turn import TurnRunner
from serving.orchestrator.turn_request import TurnRequest
from serving.orchestrator.turns import Message

LONG = 1000  # tokens of the longer answer


def conversation(turns: int) -> list[Message]:
    messages: list[Message] = []
    for number in range(turns):
        messages += [
            {"role": "user", "content": f"What is the difference between warp and weft, part {number}?"},
            {"role": "assistant", "content": "The warp stands still, and the weft goes over and under it."},
        ]
    return [*messages, {"role": "user", "content": "And what is a selvedge?"}]


async def medians(runs: int, *ways: Callable[[], Awaitable[None]]) -> list[float]:
    """Milliseconds. The ways take turns, so that a machine that slows down does not count against one."""
    times: list[list[float]] = [[] for _ in ways]
    for run in range(runs + 1):
        for way, found in zip(ways, times, strict=True):
            begin = time.perf_counter()
            await way()
            if run:  # the first is to warm up
                found.append(1000 * (time.perf_counter() - begin))
    return [statistics.median(found) for found in times]


async def compared(
    generator: Generator, turns: int, tokens: int, runs: int, tools: Toolbox | None
) -> tuple[float, float]:
    """Milliseconds of the bare generator and of a turn."""
    messages = conversation(turns)
    registry = None if tools is None else tools.registry
    names = () if registry is None else registry.groups
    offered = None if registry is None else registry.offered(names)
    control = ControlTokens(generator.tokenizer)  # once for a server

    async def generate(request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        prompt = (await generator.prepare(request)).prompt_tokens
        for number in range(1, tokens + 1):
            finish = FinishReason.STOP if number == tokens else None
            yield TextDelta(
                index=0,
                usage=Usage(prompt_tokens=prompt, cached_tokens=0, completion_tokens=number),
                text=" weft",
                finish_reason=finish,
            )

    async def bare() -> None:
        async for _ in generate(TextRequest(request_id="r", messages=messages, tools=offered)):
            pass

    async def turn() -> None:
        runner = TurnRunner(generator, generate, registry, control=control)
        asked = TurnRequest(request_id="r", messages=messages, server_tools={name: {} for name in names})
        async for _ in runner.run(asked):
            pass

    first, second = await medians(runs, bare, turn)
    return first, second


async def main(runs: int) -> Table:
    table = Table("earlier turns", "tools", "bare, ms", "turn, ms", "more a turn, ms", "more a token, µs")
    async with demo_generator() as (_, generator):
        for turns, tools in ((0, None), (0, Toolbox()), (10, None), (10, Toolbox())):
            bare, turn = await compared(generator, turns, 1, runs, tools)
            long_bare, long_turn = await compared(generator, turns, LONG, runs, tools)
            each = 1000 * ((long_turn - turn) - (long_bare - bare)) / (LONG - 1)
            names = "none" if tools is None else ", ".join(tools.registry.groups)
            table.add_row(str(turns), names, f"{bare:.2f}", f"{turn:.2f}", f"{turn - bare:.2f}", f"{each:.2f}")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--runs", type=count, default=50)
    Console().print(asyncio.run(main(parser.parse_args().runs)))

"""What each strategy of memory recalls of facts that were told long ago, and the tokens that it costs:
`python -m scripts.bench_memory [--turns N] [--facts N] [--window N] [--json FILE]`.

A conversation of N turns, in some of which the user tells a fact, is led through the context and the memory that a
server has, with a window that holds a small part of it. Then each fact is asked for: it counts as recalled where the
prompt has it, in the history, a note or the summary. Answers are fixed, so that nothing but the memory differs.
Summaries are written by the demo model, and once more by an extractor that keeps sentences with numbers: what the
strategy could do with a model that summarizes well.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from serving.app import build_engine, build_generator
from serving.commands.argument_types import count
from serving.config import load_deployment
from serving.generation.generator import Generator
from serving.generation.request import GenerationOptions, TextRequest
from serving.orchestrator.context import ContextBuilder, ContextParts
from serving.orchestrator.counter import PromptCounter
from serving.orchestrator.memory.entries import Person
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.memory.turn_memory import TurnMemory
from serving.orchestrator.turn_request import TurnRequest
from serving.orchestrator.turns import Message, conversation_of
from serving.settings.memory import MemoryConfig, Strategy

DEMO = Path(__file__).resolve().parents[1] / "configs" / "deployments" / "demo.toml"
SUMMARY_TOKENS = 192
PLACES = "harbour mill library museum station garden market school tower bakery chapel quarry stable theatre".split()
KINDS = ("locker", "gate", "account", "cellar", "bicycle")
FILLERS = (
    "What is the difference between warp and weft?",
    "Tell me a little about the colour blue.",
    "How do I keep bread fresh for longer?",
    "Give me a name for a small boat.",
    "What should I pack for a walk in the rain?",
    "Explain how a loom works.",
)
ANSWER = "There is much to say about it. In short: it depends, and one does well to try it out before one decides."

Ask = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Fact:
    subject: str
    code: str
    turn: int

    @property
    def told(self) -> str:
        return f"Please keep in mind that the code of {self.subject} is {self.code}."

    @property
    def question(self) -> str:
        return f"What is the code of {self.subject}?"


@dataclass
class Measured:
    strategy: str
    summaries: str
    recalled: float  # share of the facts
    prompt_tokens: float  # of a turn, mean
    summary_tokens: float  # prompt and output of the background's calls, for each turn
    entries: int
    milliseconds: float  # of recalling, a turn


class Tally:
    """Counts what the summaries cost."""

    def __init__(self, ask: Ask, tokens: Callable[[str], int]) -> None:
        self._ask, self._tokens = ask, tokens
        self.tokens = 0

    async def __call__(self, prompt: str) -> str:
        text = await self._ask(prompt)
        self.tokens += self._tokens(prompt) + self._tokens(text)
        return text


def facts_of(turns: int, number: int, draw: random.Random) -> list[Fact]:
    subjects = draw.sample([f"the {kind} at the {place}" for kind in KINDS for place in PLACES], number)
    codes = draw.sample(range(1000, 10_000), number)
    places = sorted(draw.sample(range(turns), number))
    return [Fact(subject, str(code), turn) for subject, code, turn in zip(subjects, codes, places, strict=True)]


async def extracted(prompt: str) -> str:
    """Sentences with numbers, of what the user said and of summaries."""
    said = prompt.replace("User:", "\n").replace("Assistant:", "\n").replace(". ", ".\n").splitlines()
    return " ".join(line.strip() for line in said if any(c.isdigit() for c in line) and not line.startswith("<"))


async def measured(
    generator: Generator, strategy: Strategy, summaries: str, ask: Ask, args: argparse.Namespace
) -> Measured:
    facts = {fact.turn: fact for fact in facts_of(args.turns, args.facts, random.Random(7))}
    counter = PromptCounter(generator=generator)
    builder = ContextBuilder(counter, args.window)
    tally = Tally(ask, counter.text)
    messages: list[Message] = []
    prompts, seconds = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="weft-memory-") as folder:
        memories = Memories(
            MemoryConfig(path=Path(folder) / "m.sqlite", strategy=strategy, summary_tokens=SUMMARY_TOKENS)
        )
        memory = TurnMemory(memories, tally)

        async def prompt_of(question: str) -> tuple[str, int, TurnRequest]:
            nonlocal seconds
            turn = TurnRequest(
                request_id="r", messages=[*messages, {"role": "user", "content": question}], tenant="t", user="u"
            )
            conversation = conversation_of(turn.messages)
            without = await builder.build(ContextParts(conversation=conversation))
            await memory.begin(turn)
            begin = time.perf_counter()
            recalled = await memory.recall(turn, without.messages)
            seconds += time.perf_counter() - begin
            parts = ContextParts(conversation=conversation, summary=recalled.summary, notes=recalled.notes)
            context = await builder.build(parts)
            return str(context.messages), context.prompt_tokens, turn

        for number in range(args.turns):
            question = facts[number].told if number in facts else FILLERS[number % len(FILLERS)]
            _, tokens, turn = await prompt_of(question)
            prompts += tokens
            await memory.remember(turn, ANSWER)
            await memories.compact()
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": ANSWER}]
        found = [fact.code in (await prompt_of(fact.question))[0] for fact in facts.values()]
        entries = len(await memories.entries(Person("t", "u")))
        memories.close()
    return Measured(
        strategy=strategy,
        summaries=summaries,
        recalled=sum(found) / len(found),
        prompt_tokens=prompts / args.turns,
        summary_tokens=tally.tokens / args.turns,
        entries=entries,
        milliseconds=1000 * seconds / (args.turns + len(facts)),
    )


async def main(args: argparse.Namespace) -> list[Measured]:
    deployment = load_deployment(DEMO)
    engine = build_engine(deployment)
    generator = build_generator(deployment, engine)

    async def model(prompt: str) -> str:
        request = TextRequest(
            request_id=f"summary-{time.monotonic_ns()}",
            messages=[{"role": "user", "content": prompt}],
            options=GenerationOptions(temperature=0, default_max_tokens=SUMMARY_TOKENS),
        )
        async with aclosing(generator.stream(await generator.prepare(request))) as deltas:
            return "".join([delta.text async for delta in deltas])

    runs: list[tuple[str, str, Ask]] = [
        ("window", "-", extracted),
        ("selective", "-", extracted),
        ("summary", "demo model", model),
        ("summary", "extractor", extracted),
        ("hierarchical", "demo model", model),
        ("hierarchical", "extractor", extracted),
    ]
    try:
        return [await measured(generator, cast(Strategy, name), by, ask, args) for name, by, ask in runs]
    finally:
        await engine.close()
        if generator.chat_format is not None:
            generator.chat_format.close()


def shown(rows: list[Measured]) -> Table:
    table = Table("strategy", "summaries by", "facts recalled", "prompt", "summaries", "entries", "recall ms")
    for row in rows:
        table.add_row(
            *(row.strategy, row.summaries, f"{row.recalled:.0%}", f"{row.prompt_tokens:.0f}"),
            *(f"{row.summary_tokens:.0f}", str(row.entries), f"{row.milliseconds:.1f}"),
        )
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--turns", type=count, default=100)
    parser.add_argument("--facts", type=count, default=30)
    parser.add_argument("--window", type=count, default=1024, help="tokens of a prompt")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    found = asyncio.run(main(arguments))
    Console().print(shown(found))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n", encoding="utf-8")

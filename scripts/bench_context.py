"""How much of a long conversation's prompts the prefix cache has already: `python -m scripts.bench_context [--turns N]
[--conversations N] [--window N]`.

Conversations of drawn words are led through the context that a server builds, with the demo's tokenizer and template
and a window that holds a part of them. A page counts as found where an earlier prompt of the conversation, or an answer
after it, began with the same tokens: what a cache finds that loses nothing. Once as weft trims, in blocks, and once by
no more than has to go.
"""

import asyncio
import random

from rich.console import Console
from rich.table import Table

from scripts.demo_generator import demo_generator
from scripts.flags import flags_of
from serving.commands.argument_types import count
from serving.generation.generator import Generator
from serving.generation.request import TextRequest
from serving.orchestrator.context import ContextBuilder, ContextParts, ContextShares
from serving.orchestrator.counter import PromptCounter
from serving.orchestrator.turns import Message, conversation_of

SYSTEM = "You are a helpful assistant. Answer briefly, and say so where you do not know."
WORDS = "loom warp weft thread shuttle cloth wool linen dye weaver pattern reed heddle selvage bobbin spindle".split()
WIDEST = 1536
TRIMMED = {"in blocks": ContextShares(), "by what has to go": ContextShares(block=0.0, newest=0.0)}


class Pages:
    """The beginnings that are cached, page by page."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: set[tuple[int, ...]] = set()

    def found(self, ids: tuple[int, ...]) -> int:
        """Tokens; the last one is always computed."""
        pages = 0
        while (pages + 1) * self._size < len(ids) and ids[: (pages + 1) * self._size] in self._known:
            pages += 1
        return pages * self._size

    def keep(self, ids: tuple[int, ...]) -> None:
        self._known |= {ids[:end] for end in range(self._size, len(ids) + 1, self._size)}


def said(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


async def measured(
    generator: Generator, shares: ContextShares, conversations: int, turns: int, window: int, page: int
) -> tuple[float, float, float]:
    """(share of the prompts' tokens that is found, tokens of a prompt, moves of the cut a conversation)."""
    draw = random.Random(7)
    builder = ContextBuilder(PromptCounter(generator=generator), window, shares=shares)
    found = total = moves = 0
    for _ in range(conversations):
        pages, cut = Pages(page), 0
        messages: list[Message] = [{"role": "system", "content": SYSTEM}]
        for _ in range(turns):
            messages.append({"role": "user", "content": said(draw, 3, 25)})
            context = await builder.build(ContextParts(conversation=conversation_of(messages)))
            answer: Message = {"role": "assistant", "content": said(draw, 3, 40)}
            ids = await _ids(generator, context.messages)
            found += pages.found(ids)
            total += len(ids)
            moves += len(context.left_out) != cut
            cut = len(context.left_out)
            pages.keep(await _ids(generator, [*context.messages, answer, {"role": "user", "content": ""}]))
            messages.append(answer)
    return found / total, total / conversations / turns, moves / conversations


async def _ids(generator: Generator, messages: list[Message]) -> tuple[int, ...]:
    return tuple((await generator.prepare(TextRequest(request_id="r", messages=messages))).prompt_token_ids)


async def main(conversations: int, turns: int, window: int) -> Table:
    table = Table("trimmed", "found", "tokens a prompt", "moves of the cut a conversation")
    async with demo_generator() as (deployment, generator):
        for name, shares in TRIMMED.items():
            page = deployment.engine.page_size
            hits, tokens, moves = await measured(generator, shares, conversations, turns, window, page)
            table.add_row(name, f"{hits:.1%}", f"{tokens:.0f}", f"{moves:.1f}")
    return table


if __name__ == "__main__":
    parser = flags_of(__doc__)
    parser.add_argument("--turns", type=count, default=100)
    parser.add_argument("--conversations", type=count, default=10)
    parser.add_argument("--window", type=count, default=1024, help="tokens that a prompt may have")
    given = parser.parse_args()
    if given.window > WIDEST:
        parser.error(
            f"--window must be at most {WIDEST}: the demo's window is 2,048, and an answer stands beside a prompt"
        )
    Console().print(asyncio.run(main(given.conversations, given.turns, given.window)))

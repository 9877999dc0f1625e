"""Retrieval from long contexts: a sentence with a number is hidden in a text, whose end begins the same sentence.

A model that finds it puts each token of the number first. Lengths and depths are spread, as pages in 8 bits may lose
what is far away.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from serving.engine.client import Engine
from serving.generation.tokenizer import Tokenizer
from serving.quality.scored_text import score

NAMES = ("Ada", "Boris", "Chidi", "Dora", "Emre", "Fatima")
LENGTHS = (0.25, 0.5, 0.95)  # of the window
DEPTHS = (0.1, 0.5, 0.9)
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Needle:
    token_ids: tuple[int, ...]
    answer: int  # how many of the last tokens are the number's
    depth: float
    length: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    needles: int
    share: float  # of needles every token of whose number came first
    tokens: float  # of those tokens, the share that came first
    missed: list[tuple[int, float]]  # length and depth of those that were not found


def needles(tokenizer: Tokenizer, text: str, window: int) -> list[Needle]:
    """One for each length and depth, always the same ones."""
    draw = random.Random(17)
    hay = tokenizer.encode(text, add_special_tokens=False)
    found = []
    for share in LENGTHS:
        for depth in DEPTHS:
            name, number = draw.choice(NAMES), "".join(draw.choices("0123456789", k=DIGITS))
            question = f"\nThe secret number of {name} is"
            start = tokenizer.encode(question, add_special_tokens=False)
            whole = tokenizer.encode(f"{question} {number}", add_special_tokens=False)
            same = next((i for i, pair in enumerate(zip(start, whole, strict=False)) if pair[0] != pair[1]), len(start))
            hidden = tokenizer.encode(f"{question} {number}.\n", add_special_tokens=False)
            room = min(int(share * window), window - 1) - len(hidden) - len(whole)
            around = (hay * (1 + room // max(1, len(hay))))[: max(0, room)]
            at = int(depth * len(around))
            ids = (*around[:at], *hidden, *around[at:], *whole)
            found.append(Needle(ids, len(whole) - same, depth, len(ids)))
    return found


async def retrieval(engine: Engine, hidden: Sequence[Needle]) -> Retrieval:
    """Raises what the engine raises."""
    first: list[list[bool]] = []
    for index, needle in enumerate(hidden):
        scores = await score(engine, f"needle-{index}", needle.token_ids)
        first.append([one.rank == 1 for one in scores[-needle.answer :]])
    return Retrieval(
        needles=len(hidden),
        share=sum(map(all, first)) / len(hidden),
        tokens=sum(map(sum, first)) / sum(map(len, first)),
        missed=[(needle.length, needle.depth) for needle, one in zip(hidden, first, strict=True) if not all(one)],
    )

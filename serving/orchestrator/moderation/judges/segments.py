"""A passage in stretches of about a sentence, which is what an encoder's vector can stand for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from serving.orchestrator.moderation.judges.judge import Passage

LONGEST, SHORTEST = 240, 24  # characters of a stretch, but for a passage that is shorter
MOST = 256  # stretches of one passage: of a longer one the first half of so many, and the last

_END = re.compile(r"[.!?。！？]+[\"')\]]*\s+|\n+")


@dataclass(frozen=True, slots=True)
class Segment:
    start: int  # the character of the passage
    text: str


def segments(passage: Passage) -> list[Segment]:
    """Those with something fresh, from the start of the sentence on."""
    text = passage.text
    judged = len(text) - passage.fresh
    found = [Segment(a, text[a:b]) for a, b in _spans(text) if b > judged and text[a:b].strip()]
    return found if len(found) <= MOST else found[: MOST // 2] + found[-MOST // 2 :]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        if end - start < SHORTEST and end < len(text):
            continue
        while end - start > LONGEST:
            space = text.rfind(" ", start + LONGEST // 2, start + LONGEST)
            middle = start + LONGEST if space < 0 else space + 1
            yield start, middle
            start = middle
        if end > start:
            yield start, end
        start = end

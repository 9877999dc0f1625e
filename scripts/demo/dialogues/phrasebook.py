"""Phrasebooks: text files of answers and the wordings that ask for them.

An entry is `= answer`, `- brief answer`, then one wording a line, in the grammar of draw.py; entries are separated by an empty line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One answer, its brief form, and how people ask for it."""

    answer: str
    brief: str
    wordings: tuple[str, ...]


def read_phrasebook(path: Path, names: Mapping[str, str] | None = None) -> list[Entry]:
    """The entries of a file; `names` stand in its wordings for longer pieces of grammar. Raises ValueError for a bad entry."""
    entries = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        answer, brief, *wordings = block.strip().split("\n")
        if not (answer.startswith("= ") and brief.startswith("- ") and wordings):
            raise ValueError(f"{path}: an entry needs '= answer', '- brief' and wordings, not {block[:60]!r}")
        for name, grammar in (names or {}).items():
            wordings = [wording.replace(name, grammar) for wording in wordings]
        entries.append(Entry(answer[2:], brief[2:], tuple(wordings)))
    return entries

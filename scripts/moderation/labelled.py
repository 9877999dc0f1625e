"""The labelled set: short texts, each of one category or benign; a part to learn from and a part held out."""

import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from serving.orchestrator.moderation.judges.similarity import BENIGN

FILE = Path(__file__).parent / "labelled.toml"
CANARIES = Path(__file__).parents[2] / "serving" / "orchestrator" / "moderation" / "tables" / "canaries.toml"
MOST_OF_A_LINE = 6  # texts that one template gives

_CHOICE = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Item:
    text: str
    label: str
    area: str = ""  # of benign texts that are held out


def training_items() -> list[Item]:
    return [Item(text, label) for label, table in _tables().items() for line in table["train"] for text in spread(line)]


def held_out_items() -> list[Item]:
    harmful = [Item(text, label) for label, table in _tables().items() for text in table.get("held_out", ())]
    benign = tomllib.loads(CANARIES.read_text(encoding="utf-8"))
    return harmful + [Item(text, BENIGN, area) for area, texts in benign.items() for text in texts]


def spread(line: str) -> list[str]:
    """A few of the texts that a template stands for, as different from each other as can be: steps through all
    combinations by a stride that has no factor in common with most counts."""
    parts = _CHOICE.split(line)
    choices = [part.split("|") if at % 2 else [part] for at, part in enumerate(parts)]
    texts = ["".join(words) for words in itertools.product(*choices)]
    if len(texts) <= MOST_OF_A_LINE:
        return texts
    stride = max(1, len(texts) // MOST_OF_A_LINE) | 1
    return list(dict.fromkeys(texts[at * stride % len(texts)] for at in range(MOST_OF_A_LINE)))


def _tables() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))

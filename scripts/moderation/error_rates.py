"""How often judges are wrong on texts that none of them has seen: by category, and on what is benign by area."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.moderation.labelled import Item, held_out_items
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.moderation.judges.head import Head, HeadJudge
from serving.orchestrator.moderation.judges.judge import Judge, Passage
from serving.orchestrator.moderation.judges.rules import BUILT_IN, RulesJudge
from serving.orchestrator.moderation.judges.similarity import BENIGN, SimilarityJudge, read_examples

THRESHOLD = 0.5
# A category of the labelled set, and what judges may call a text of it.
KIN: Mapping[str, tuple[str, ...]] = {
    "violence": ("violence", "violence/graphic", "harassment/threatening"),
    "self-harm": ("self-harm", "self-harm/intent", "self-harm/instructions"),
    "hate": ("hate", "hate/threatening"),
    "harassment": ("harassment", "harassment/threatening"),
    "sexual": ("sexual",),
    "illicit": ("illicit", "illicit/violent"),
    "jailbreak": ("jailbreak",),
}


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    texts: int
    named: int  # with a finding of their own category
    stopped: int  # with a finding of any


def panels(encoder: TextEmbedder, folder: Path) -> dict[str, list[Judge]]:
    rules: Judge = RulesJudge([BUILT_IN])
    head: Judge = HeadJudge(Head.read(folder / "head.safetensors"), encoder)
    similar: Judge = SimilarityJudge(read_examples(folder / "examples.toml"), encoder)
    return {
        "rules": [rules],
        "rules, similarity": [rules, similar],
        "rules, head": [rules, head],
        "all three": [rules, similar, head],
    }


async def error_rates(judges: Sequence[Judge], items: Sequence[Item]) -> list[Row]:
    found = [await _categories(judges, item.text) for item in items]
    rows = []
    for name in [*KIN, *dict.fromkeys(item.area for item in items if item.label == BENIGN)]:
        chosen = [set_ for item, set_ in zip(items, found, strict=True) if name in (item.label, item.area)]
        kin = set(KIN.get(name, ()))
        rows.append(Row(name, len(chosen), sum(bool(kin & one) for one in chosen), sum(map(bool, chosen))))
    return rows


async def _categories(judges: Sequence[Judge], text: str) -> set[str]:
    passage = Passage(text=text, direction="input", fresh=len(text))
    return {f.category for judge in judges for f in await judge.judge(passage) if f.score >= THRESHOLD}


def table(encoder: TextEmbedder, folder: Path) -> str:
    """In Markdown."""
    items = held_out_items()
    rates = {name: asyncio.run(error_rates(judges, items)) for name, judges in panels(encoder, folder).items()}
    lines = [f"| Held out | texts | {' | '.join(rates)} |", f"|---|---|{'---|' * len(rates)}"]
    for rows in zip(*rates.values(), strict=True):
        name, texts = rows[0].name, rows[0].texts
        if name in KIN:
            cells = [f"{1 - row.named / texts:.0%} ({1 - row.stopped / texts:.0%})" for row in rows]
        else:
            name, cells = f"benign: {name}", [f"{row.stopped / texts:.0%}" for row in rows]
        lines.append(f"| {name} | {texts} | {' | '.join(cells)} |")
    for title, wanted in (("all harmful", True), ("all benign", False)):
        cells = []
        for rows in rates.values():
            chosen = [row for row in rows if (row.name in KIN) is wanted]
            texts, stopped = sum(row.texts for row in chosen), sum(row.stopped for row in chosen)
            named = sum(row.named for row in chosen)
            cells.append(f"{1 - named / texts:.0%} ({1 - stopped / texts:.0%})" if wanted else f"{stopped / texts:.0%}")
        total = sum(row.texts for row in rates["rules"] if (row.name in KIN) is wanted)
        lines.append(f"| **{title}** | {total} | {' | '.join(cells)} |")
    return "\n".join(lines)

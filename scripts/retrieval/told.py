"""How often a model that is told only the nearest sentences is told the answer, and how much less it reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.retrieval.recall import FIRST, STORE, TENANT
from scripts.retrieval.recall_set import RecallSet
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.nearest_sentences import NearestSentences
from serving.orchestrator.retrieval.query import Query
from serving.orchestrator.retrieval.search import Found, Search, Told

MOST = (1, 2, 4, 8)  # sentences
WHOLE = "whole passages"


@dataclass(frozen=True, slots=True)
class TellingRow:
    told: str
    answered: float  # share of the questions whose answer is among what is told
    tokens: float  # of the encoder, that are told a question


async def measure(search: Search, encoding: Encoding, given: RecallSet) -> list[TellingRow]:
    """Of the five passages that a search by both rankings finds."""
    found = {
        question: await search.find(TENANT, [STORE], Query(texts=[question.text], limit=FIRST), b"")
        for question in given.questions
    }
    count = encoding.counter()

    def row(name: str, told: dict[str, Sequence[Told]]) -> TellingRow:
        hits = sum(any(question.answer in each.text for each in told[question.text]) for question in given.questions)
        tokens = sum(count(each.text) for tellings in told.values() for each in tellings)
        return TellingRow(name, hits / len(given.questions), tokens / len(given.questions))

    rows = [row(WHOLE, {question.text: [_whole(each) for each in best] for question, best in found.items()})]
    for most in MOST:
        nearest = NearestSentences(encoding, most)
        told = {question.text: await nearest.of(best, [question.text], b"") for question, best in found.items()}
        rows.append(row(f"{most} sentence{'s'[: most - 1]}", told))
    return rows


def _whole(found: Found) -> Told:
    return Told(found, " ".join(found.held.embedded.passage.chunk.text.split()))


def table(rows: Sequence[TellingRow]) -> str:
    lines = ["| a model is told | the answer is in it | tokens |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.told} | {row.answered:.2f} | {row.tokens:.0f} |" for row in rows)])

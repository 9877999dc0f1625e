"""Of the passages that a search found, the few sentences nearest to the question: for a model whose window is small.

    passages    5 of 512 to 1,024 tokens     what the search found
    windows     those nearest to the query   whose vectors are kept
    sentences   64 of them at most           embedded now, and the nearest told

A passage without a sentence among them is not told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.orchestrator.retrieval.chunks import sentences_of
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.search import Found, Told
from serving.settings.retrieval import MOST_TOLD

_MOST_CANDIDATES = MOST_TOLD  # whose vectors one question costs: a second or two of a CPU


@dataclass(frozen=True, slots=True)
class _Sentence:
    found: int  # index of the passage
    start: int  # character of the document
    text: str  # on one line: a PDF's lines end anywhere


class NearestSentences:
    def __init__(self, encoding: Encoding, most: int) -> None:
        """`most` sentences are told, of all passages together."""
        self._encoding = encoding
        self._most = most

    async def of(self, found: Sequence[Found], texts: Sequence[str], principal: bytes) -> list[Told]:
        """In the order of `found`; the sentences of a passage one a line, in the document's order. `texts` are the
        questions: a sentence is as near as to the nearest of them. Raises what the gateway and the engine raise."""
        if not found:
            return []
        queries = await self._encoding.embed(self._encoding.query(texts), principal)
        candidates = _candidates(found, queries)
        encoded = self._encoding.tokenizer.encode([each.text for each in candidates])
        vectors = await self._encoding.embed(encoded, principal)
        order = np.argsort(-(vectors @ queries.T).max(axis=1), kind="stable")[: self._most]
        nearest = sorted((candidates[index] for index in order), key=lambda each: (each.found, each.start))
        lines: dict[int, list[str]] = {}
        for each in nearest:
            lines.setdefault(each.found, []).append(each.text)
        return [Told(found[index], "\n".join(told)) for index, told in lines.items()]


def _candidates(found: Sequence[Found], queries: np.ndarray) -> list[_Sentence]:
    """The sentences of the windows nearest to a query ([queries, D]), each once: passages of a document overlap."""
    windows = [
        (float(score), index, window)
        for index, each in enumerate(found)
        for score, window in zip(
            (each.held.embedded.vectors @ queries.T).max(axis=1), each.held.embedded.passage.windows, strict=True
        )
    ]
    sentences: dict[tuple[str, str], _Sentence] = {}
    for _, index, window in sorted(windows, key=lambda item: -item[0]):
        each = found[index]
        text = each.held.embedded.passage.text_of(window)
        for start, end in sentences_of(text):
            line = " ".join(text[start:end].split())
            sentences.setdefault((each.file.file_id, line), _Sentence(index, window[0] + start, line))
        if len(sentences) >= _MOST_CANDIDATES:
            break
    return list(sentences.values())[:_MOST_CANDIDATES]

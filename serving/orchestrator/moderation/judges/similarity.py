"""Nearness to examples: of each category, and of what is benign and close to it in its words."""

import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from serving.errors import ConfigError
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.moderation.judges.encoded import vectors_of
from serving.orchestrator.moderation.judges.head import findings
from serving.orchestrator.moderation.judges.judge import Finding, Passage
from serving.orchestrator.moderation.judges.segments import segments
from serving.settings.moderation import CATEGORIES

BENIGN = "benign"
NEAR = 0.45  # a cosine below which nothing is like anything
STEEPNESS = 15.0  # of the score around the point where an example is as near as the nearest benign one
MOST_EXAMPLES = 10_000


class SimilarityJudge:
    immediate = False

    def __init__(self, examples: Mapping[str, Sequence[str]], encoder: TextEmbedder) -> None:
        """The examples are embedded when they are first needed: until then the engine may be starting."""
        self._examples = dict(examples)
        self._encoder = encoder
        self._categories = tuple(name for name in examples if name != BENIGN)
        self._vectors: dict[str, np.ndarray] | None = None
        self._embedding = asyncio.Lock()

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(self._categories)

    async def judge(self, passage: Passage) -> Sequence[Finding]:
        parts = segments(passage)
        if not parts:
            return []
        examples = await self._embedded()
        vectors = await vectors_of(self._encoder, [part.text for part in parts])
        return findings(self._categories, self._scores(vectors, examples), parts)

    async def close(self) -> None:
        pass

    def _scores(self, vectors: np.ndarray, examples: Mapping[str, np.ndarray]) -> np.ndarray:
        """[stretches, categories]: 0.5 where the nearest example is as near as what is benign."""
        floor = np.full(len(vectors), NEAR, np.float32)
        if BENIGN in examples:
            floor = np.maximum(floor, (vectors @ examples[BENIGN].T).max(axis=1))
        nearest = np.stack([(vectors @ examples[name].T).max(axis=1) for name in self._categories], axis=1)
        return 1.0 / (1.0 + np.exp(-STEEPNESS * (nearest - floor[:, None])))

    async def _embedded(self) -> Mapping[str, np.ndarray]:
        async with self._embedding:
            if self._vectors is None:
                names = list(self._examples)
                texts = [text for name in names for text in self._examples[name]]
                vectors = await vectors_of(self._encoder, texts)
                ends = np.cumsum([len(self._examples[name]) for name in names])
                self._vectors = dict(zip(names, np.split(vectors, ends[:-1]), strict=True))
            return self._vectors


def read_examples(path: Path) -> dict[str, list[str]]:
    """A list of texts for each category, and for "benign". Raises ConfigError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file that can be read: {error}", param="path") from error
    for name, texts in tables.items():
        if name != BENIGN and name not in CATEGORIES:
            known = ", ".join((*CATEGORIES, BENIGN))
            raise ConfigError(f"{path}: {name!r} is no category; there are {known}", param="path")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f"{path}: {name} must be a list of texts that are not empty", param="path")
    if not set(tables) - {BENIGN} or sum(map(len, tables.values())) > MOST_EXAMPLES:
        raise ConfigError(f"{path}: must have examples of a category, {MOST_EXAMPLES} at most", param="path")
    return tables

"""A logistic regression for each category over the encoder's vector, as scripts/train_moderation makes it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from serving.errors import CheckpointError
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.moderation.judges.encoded import vectors_of
from serving.orchestrator.moderation.judges.judge import Finding, Passage
from serving.orchestrator.moderation.judges.segments import Segment, segments
from serving.settings.moderation import CATEGORIES

NOT_WORTH_SAYING = 0.01  # a score below it is left out


@dataclass(frozen=True, slots=True)
class Head:
    categories: tuple[str, ...]
    weights: np.ndarray  # [categories, D] float32
    bias: np.ndarray  # [categories] float32
    encoder: str  # the sha256 of the weights that it was trained on

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """[texts, categories] from [texts, D]."""
        return 1.0 / (1.0 + np.exp(-(vectors @ self.weights.T + self.bias)))

    def save(self, path: Path) -> None:
        facts = {"categories": json.dumps(self.categories), "encoder": self.encoder}
        save_file({"weights": self.weights, "bias": self.bias}, path, metadata=facts)

    @classmethod
    def read(cls, path: Path) -> "Head":
        """Raises CheckpointError."""
        try:
            with safe_open(path, framework="numpy") as file:
                facts = file.metadata() or {}
                categories = tuple(json.loads(facts["categories"]))
                head = cls(categories, file.get_tensor("weights"), file.get_tensor("bias"), facts["encoder"])
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: not a head that scripts/train_moderation made: {error!r}") from error
        count = len(categories)
        if head.weights.ndim != 2 or len(head.weights) != count or head.bias.shape != (count,):
            raise CheckpointError(f"{path}: the shapes do not fit {count} categories")
        if unknown := set(categories) - set(CATEGORIES):
            raise CheckpointError(f"{path}: there is no category {min(unknown)!r}")
        return head


def fingerprint(encoder: Path) -> str:
    """Of the weights in an encoder's folder. Raises CheckpointError."""
    try:
        with (encoder / "model.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{encoder}: no model.safetensors can be read: {error.strerror or error}") from error


class HeadJudge:
    immediate = False

    def __init__(self, head: Head, encoder: TextEmbedder) -> None:
        self._head = head
        self._encoder = encoder

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(self._head.categories)

    async def judge(self, passage: Passage) -> Sequence[Finding]:
        parts = segments(passage)
        if not parts:
            return []
        vectors = await vectors_of(self._encoder, [part.text for part in parts])
        return findings(self._head.categories, self._head.scores(vectors), parts)

    async def close(self) -> None:
        pass


def findings(categories: Sequence[str], scores: np.ndarray, parts: Sequence[Segment]) -> list[Finding]:
    """The stretch of the highest score stands for its category. `scores`: [stretches, categories]."""
    best = scores.argmax(axis=0)
    return [
        Finding(category, float(scores[at, column]), parts[at].start)
        for column, (category, at) in enumerate(zip(categories, best, strict=True))
        if scores[at, column] >= NOT_WORTH_SAYING
    ]

"""Prompts whose answers are known well enough to be scored."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import re2

from serving.errors import ConfigError
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.text_vectors import answer_similarity

Kind = Literal["exact", "contains", "regex", "similarity"]
_MOST = 256  # canaries: each has a series of its own


class Canary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,64}$")]
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    expected: Annotated[str, msgspec.Meta(min_length=1)]  # a text; for "regex", what must be found in the answer
    kind: Kind = "contains"  # "exact" and "contains" do not tell capitals and the space around the answer
    system: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    usual: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # the score that a healthy server gets

    async def score(self, answer: str, encoder: TextEmbedder | None) -> float:
        """From 0 to 1. Raises what Embedder.embed raises."""
        said, expected = answer.strip().casefold(), self.expected.strip().casefold()
        if self.kind == "exact":
            return float(said == expected)
        if self.kind == "contains":
            return float(expected in said)
        if self.kind == "regex":
            return float(re2.search(self.expected, answer) is not None)
        assert encoder is not None
        return min(1.0, max(0.0, await answer_similarity(encoder, answer, self.expected)))


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    canaries: Annotated[list[Canary], msgspec.Meta(min_length=1, max_length=_MOST)]


def read_canaries(path: Path, *, has_encoder: bool) -> list[Canary]:
    """Raises ConfigError."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).canaries
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror or error}", param="quality_watch.canaries"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: not a file of canaries: {error}", param="quality_watch.canaries") from error
    names: set[str] = set()
    for canary in found:
        fault = _fault(canary, has_encoder)
        if canary.name in names:
            fault = "has a name that an earlier one has"
        if fault is not None:
            raise ConfigError(f"{path}: the canary {canary.name!r} {fault}", param="quality_watch.canaries")
        names.add(canary.name)
    return found


def _fault(canary: Canary, has_encoder: bool) -> str | None:
    if canary.kind == "similarity" and not has_encoder:
        return 'is of kind "similarity", and needs an [embeddings] table'
    if canary.kind == "regex":
        try:
            re2.compile(canary.expected)
        except re2.error as error:
            return f"has an expression that RE2 cannot read: {error}"
    return None

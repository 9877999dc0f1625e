"""The table `speculation`: guesses at the next tokens, and what makes them (docs/speculation.md)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.errors import ConfigError

SpeculationKind = Literal["off", "ngram", "draft", "eagle3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    # ngram: what followed when the text last said the same; draft: a small model; eagle3: a head on the model's states
    kind: SpeculationKind = "off"
    checkpoint: Path | None = None  # of the draft model or the head, a directory in the hub's layout
    depth: int = 4  # guesses at most, of one stream in one step
    ngram_shortest: int = 2  # tokens at the end of the text that are looked up in it
    ngram_longest: int = 4
    adaptive: bool = True  # by what guesses have gained lately; false: whatever is found is guessed, at any load


def check_speculation(speculation: SpeculationConfig, where: str) -> None:
    if (speculation.kind in ("draft", "eagle3")) != (speculation.checkpoint is not None):
        raise ConfigError(
            f'{where}: speculation.checkpoint is for speculation.kind = "draft" or "eagle3", which need it',
            param="checkpoint",
        )
    for name in ("ngram_shortest", "ngram_longest"):
        if speculation.checkpoint is not None and getattr(speculation, name) != getattr(SpeculationConfig(), name):
            raise ConfigError(
                f'{where}: speculation.{name} is for speculation.kind = "ngram", not "{speculation.kind}"', param=name
            )
    if speculation.ngram_shortest > speculation.ngram_longest:
        raise ConfigError(
            f"{where}: speculation.ngram_shortest ({speculation.ngram_shortest}) must be at most ngram_longest "
            f"({speculation.ngram_longest})",
            param="ngram_shortest",
        )

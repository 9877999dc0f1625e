"""The table `model_embeddings`: vectors of texts from the served model itself (docs/embeddings.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from serving.errors import ConfigError

PoolingName = Literal["last", "mean", "cls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEmbeddingsConfig:
    pooling: PoolingName | None = None  # None: what the checkpoint's folder says (modules.json)
    normalize: bool | None = None  # vectors of length 1; None: what the folder says, and yes where it says nothing
    end_token: str | None = None  # put behind each text that does not end with it, such as "<|endoftext|>"
    max_tokens: int | None = None  # of a text, marks included; None: as many as model and window allow
    min_dimensions: int | None = None  # clients may cut vectors down to so many numbers; None: not at all


def check_model_embeddings(
    config: ModelEmbeddingsConfig, where: str, *, data: int, pipeline: int, processes: int
) -> None:
    """The numbers are of the mesh and of the cluster. Raises ConfigError."""
    for name, message in _faults(config, data, pipeline, processes):
        raise ConfigError(f"{where}: model_embeddings{name} {message}", param=f"model_embeddings{name}")


def _faults(config: ModelEmbeddingsConfig, data: int, pipeline: int, processes: int) -> Iterator[tuple[str, str]]:
    if config.pooling == "cls":
        yield ".pooling", 'is "cls", the first token of a text, which in a decoder sees itself alone: take "last"'
    if config.end_token == "":
        yield ".end_token", "must not be empty: leave it out where nothing is to be put behind a text"
    for name in ("max_tokens", "min_dimensions"):
        value = getattr(config, name)
        if value is not None and value < 1:
            yield f".{name}", f"must be at least 1, not {value}"
    for name, size in (("mesh.data", data), ("mesh.pipeline", pipeline), ("cluster.processes", processes)):
        if size > 1:
            yield (
                "",
                f"is not offered where {name} is above 1, and it is {size}: leave the table out, or split by tensor",
            )

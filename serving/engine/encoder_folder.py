"""What the folder of an encoder says beside its weights, in the form of the sentence-transformers library."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.config import EmbeddingsConfig
from serving.errors import CheckpointError, ConfigError

_FLAG = "pooling_mode_"
_MEAN = "mean_tokens"
_MODULES = ["Transformer", "Pooling", "Normalize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFacts:
    dimensions: int
    vocab_size: int
    max_tokens: int  # of a text, special ones included


def read_encoder(config: EmbeddingsConfig) -> EncoderFacts:
    """Raises CheckpointError for an encoder that is not offered, ConfigError for a text longer than it can read."""
    folder = config.checkpoint
    _check_modules(folder)
    fields = _object(folder / "config.json")
    longest = _integer(fields, "max_position_embeddings", folder / "config.json")
    limits = folder / "sentence_bert_config.json"
    if limits.is_file():
        longest = min(longest, _integer(_object(limits), "max_seq_length", limits))
    if config.max_tokens > longest:
        raise ConfigError(
            f"embeddings.max_tokens is {config.max_tokens}, but {folder.name} was made for {longest} tokens",
            param="max_tokens",
        )
    return EncoderFacts(
        dimensions=_integer(fields, "hidden_size", folder / "config.json"),
        vocab_size=_integer(fields, "vocab_size", folder / "config.json"),
        max_tokens=config.max_tokens,
    )


def _check_modules(folder: Path) -> None:
    """A mean over a text's tokens, of length 1: the one pooling there is here."""
    path = folder / "modules.json"
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: must hold a list of objects")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds != _MODULES:
        raise CheckpointError(f"{path}: the modules must be {', '.join(_MODULES)}, not {', '.join(kinds)}")
    pooling = folder / str(modules[1].get("path", "")) / "config.json"
    asked = _modes(_object(pooling))
    if asked != [_MEAN]:
        raise CheckpointError(f"{pooling}: pooling must be {_MEAN} alone, not {', '.join(asked) or 'nothing'}")


def _modes(pooling: dict[str, Any]) -> list[str]:
    """By their names in the older of the two forms of that file."""
    newer = pooling.get("pooling_mode")
    if newer is not None:
        names = newer if isinstance(newer, list) else [newer]
        return [_MEAN if name == "mean" else str(name) for name in names]
    return [key.removeprefix(_FLAG) for key, asked in pooling.items() if key.startswith(_FLAG) and asked]


def _integer(fields: dict[str, Any], key: str, path: Path) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{path}: {key} must be a positive integer, not {value!r}", param=key)
    return value


def _object(path: Path) -> dict[str, Any]:
    value = _json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold an object")
    return value


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: an encoder's folder needs this file: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error

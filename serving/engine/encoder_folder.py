"""What the folder of whoever embeds says beside its weights, in the form of the sentence-transformers library."""

import json
from pathlib import Path
from typing import Any

from serving.config import EmbeddingsConfig
from serving.engine.embedding import TextFacts
from serving.errors import CheckpointError, ConfigError

_FLAG = "pooling_mode_"
MEAN = "mean_tokens"
MODULES = ["Transformer", "Pooling", "Normalize"]


def read_encoder(config: EmbeddingsConfig) -> TextFacts:
    """Raises CheckpointError for an encoder that is not offered, ConfigError for a text longer than it can read."""
    folder = config.checkpoint
    _check_modules(folder)
    fields = read_object(folder / "config.json")
    longest = read_integer(fields, "max_position_embeddings", folder / "config.json")
    longest = min(longest, stated_max_tokens(folder) or longest)
    if config.max_tokens > longest:
        raise ConfigError(
            f"embeddings.max_tokens is {config.max_tokens}, but {folder.name} was made for {longest} tokens",
            param="max_tokens",
        )
    return TextFacts(
        dimensions=read_integer(fields, "hidden_size", folder / "config.json"),
        vocab_size=read_integer(fields, "vocab_size", folder / "config.json"),
        max_tokens=config.max_tokens,
    )


def _check_modules(folder: Path) -> None:
    """A mean over a text's tokens, of length 1: the one pooling there is here."""
    path, modules = folder / "modules.json", read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds != MODULES:
        raise CheckpointError(f"{path}: the modules must be {', '.join(MODULES)}, not {', '.join(kinds)}")
    pooling = modules[1][1] / "config.json"
    asked = pooling_modes(read_object(pooling))
    if asked != [MEAN]:
        raise CheckpointError(f"{pooling}: pooling must be {MEAN} alone, not {', '.join(asked) or 'nothing'}")


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Of modules.json: what each is, and its folder. Raises CheckpointError."""
    path = folder / "modules.json"
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: must hold a list of objects")
    return [
        (str(module.get("type", "")).rpartition(".")[2], folder / str(module.get("path", ""))) for module in modules
    ]


def stated_max_tokens(folder: Path) -> int | None:
    """Of a text, where the folder says so. Raises CheckpointError."""
    path = folder / "sentence_bert_config.json"
    fields = read_object(path) if path.is_file() else {}
    return None if fields.get("max_seq_length") is None else read_integer(fields, "max_seq_length", path)


def pooling_modes(pooling: dict[str, Any]) -> list[str]:
    """By their names in the older of the two forms of that file."""
    newer = pooling.get("pooling_mode")
    if newer is not None:
        names = newer if isinstance(newer, list) else [newer]
        return [MEAN if name == "mean" else str(name) for name in names]
    return [key.removeprefix(_FLAG) for key, asked in pooling.items() if key.startswith(_FLAG) and asked]


def read_integer(fields: dict[str, Any], key: str, path: Path) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{path}: {key} must be a positive integer, not {value!r}", param=key)
    return value


def read_object(path: Path) -> dict[str, Any]:
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

"""How long a sequence a checkpoint allows, as its config.json says. The API process has no models to ask."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import CheckpointError, ConfigError

MADE_FOR = "max_position_embeddings"
_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """Tokens of prompt and output together."""

    made_for: int
    most: int  # with the scaling of its positions, which a model's page may say to add: made_for stays as it is then

    def of(self, wanted: int | None, name: str) -> int:
        """The window of a deployment of the model `name`. Raises ConfigError where it is wider than allowed."""
        if wanted is None:
            return self.made_for
        if wanted > self.most:
            raise ConfigError(
                f"engine.max_model_len is {wanted}, but {name} allows {self.most} tokens ({MADE_FOR} in its "
                "config.json, and rope_scaling where that is yarn or linear): ask for at most so many, or add the "
                "rope_scaling to config.json that the model's page names for longer texts",
                param="max_model_len",
            )
        return wanted


def read_context_window(checkpoint: Path) -> ContextWindow:
    """Raises CheckpointError."""
    path = checkpoint / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        made_for = fields[MADE_FOR]
    except FileNotFoundError:
        raise CheckpointError(f"{path}: a checkpoint directory needs this file") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no {MADE_FOR} can be read from it: {error!r}") from error
    if not isinstance(made_for, int) or made_for < 1:
        raise CheckpointError(f"{path}: {MADE_FOR} must be a positive integer, not {made_for!r}")
    return context_window(fields, made_for)


def context_window(fields: Mapping[str, Any], made_for: int) -> ContextWindow:
    """Of config.json's fields. What is malformed in them stretches nothing: the model's own reader refuses it."""
    return ContextWindow(made_for, max(made_for, _stretched(fields, made_for)))


def _stretched(fields: Mapping[str, Any], made_for: int) -> int:
    """How far yarn or linear scaling reaches; other kinds say it by max_position_embeddings.

    Where sliding layers have a rope of their own, max_position_embeddings counts the scaling already (Gemma 3).
    """
    scaling = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not isinstance(scaling, dict) or fields.get("rope_local_base_freq") is not None:
        return made_for
    kind, factor = scaling.get("rope_type") or scaling.get("type"), _number(scaling.get("factor"))
    if kind == "linear" and factor is not None:
        return int(factor * made_for)
    if kind == "yarn" and factor is not None:
        # As the model's reader has it: beside the others has precedence.
        original = _number(fields.get(_ORIGINAL)) or _number(scaling.get(_ORIGINAL)) or made_for
        return int(factor * original)
    return made_for


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
        return None
    return value

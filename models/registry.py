"""Which family a checkpoint's config.json names."""

from collections.abc import Sequence
from typing import Any

from models import (
    deepseek,
    gemma2,
    gemma3,
    glm4,
    gpt_oss,
    llama,
    llama4,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
)
from models.fields import Fields
from models.interface import Family

FAMILIES: tuple[Family, ...] = (
    *(llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, olmo2, glm4),
    *(mixtral, qwen3_moe, gpt_oss, deepseek, llama4),
)


def family_of(config: dict[str, Any], families: Sequence[Family] = FAMILIES) -> Family:
    """The one of `families` that builds what config.json describes. Raises CheckpointError where none does."""
    fields = Fields(config)
    known = [name for family in families for name in family.architectures]
    named = fields.strings("architectures")
    for family in families:
        if any(name in family.architectures for name in named):
            return family
    raise fields.error("architectures", f"one of {', '.join(known)}")

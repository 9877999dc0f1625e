"""Which family a checkpoint's config.json names."""

from typing import Any

from models import llama, qwen3
from models.fields import Fields
from models.interface import Family

FAMILIES: tuple[Family, ...] = (llama, qwen3)


def family_of(config: dict[str, Any]) -> Family:
    """The family that builds what config.json describes. Raises CheckpointError for one that is not known."""
    fields = Fields(config)
    known = [name for family in FAMILIES for name in family.architectures]
    named = fields.strings("architectures")
    for family in FAMILIES:
        if any(name in family.architectures for name in named):
            return family
    raise fields.error("architectures", f"one of {', '.join(known)}")

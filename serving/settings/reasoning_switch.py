"""The table `model.reasoning_switch`: the template variable that says how much to reason (docs/answers.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from serving.errors import ConfigError

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSwitchConfig:
    variable: str  # of the template
    values: Mapping[str, bool | int | str] = field(default_factory=dict)  # by effort; none: false for none and minimal


def check_reasoning_switch(config: ReasoningSwitchConfig, where: str) -> None:
    """Raises ConfigError for efforts that no client can ask for."""
    for effort in config.values:
        if effort not in EFFORTS:
            raise ConfigError(
                f"{where}: model.reasoning_switch.values must be by {', '.join(EFFORTS)}, not by {effort!r}",
                param="values",
            )

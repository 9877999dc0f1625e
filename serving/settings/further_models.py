"""Models that a deployment serves beside its first: the tables that say what an engine runs (docs/models.md)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.errors import ConfigError
from serving.settings.model import EngineConfig, MeshConfig, ModelConfig, PlanConfig
from serving.settings.prefix_cache import PrefixCacheConfig
from serving.settings.speculation import SpeculationConfig

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_SERVER_WIDE = ("tenant_pins", "pin_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherModel:
    model: ModelConfig
    engine: EngineConfig = field(default_factory=EngineConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    prefix_cache: PrefixCacheConfig = field(default_factory=PrefixCacheConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)


def check_further_models(
    models: Mapping[str, FurtherModel], taken: tuple[str | None, ...], processes: int, where: str
) -> None:
    """`taken` are names that mean something else. What stands in their tables is checked as of any deployment.

    Raises ConfigError.
    """
    for name in models:
        if not MODEL_NAME.fullmatch(name):
            raise ConfigError(
                f"{where}: models must have names of 1 to 128 letters, digits and . _ / -, not {name!r}", param="models"
            )
        if name in taken:
            raise ConfigError(f"{where}: models.{name} has a name that means another model here", param="models")
        for key in _SERVER_WIDE:
            if getattr(models[name].prefix_cache, key) != getattr(PrefixCacheConfig(), key):
                raise ConfigError(
                    f"{where}: models.{name}.prefix_cache.{key} must be left out: prefix_cache.{key} is for all models",
                    param=key,
                )
    if models and processes > 1:
        raise ConfigError(
            f"{where}: models are not offered where cluster.processes is above 1: a deployment on several hosts "
            "serves one",
            param="models",
        )

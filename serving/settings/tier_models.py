"""The models that tiers name: a tier that names one which no request can mean would let nobody in."""

from collections.abc import Mapping, Sequence

from serving.errors import ConfigError
from serving.settings.adapters import ADAPTER_NAME, AdaptersConfig


def check_tier_models(
    tiers: Mapping[str, Sequence[str]], served: Sequence[str], adapters: AdaptersConfig, where: str
) -> None:
    """`tiers` by their names, each with the models that it names. `served` are those that there are, the one that has
    the adapters first. Raises ConfigError."""
    base = served[0]
    known = [*served, *(f"{base}:{name}" for name in adapters.named)]
    for name, models in tiers.items():
        for model in models:
            if model in known or (adapters.folder is not None and _is_adapter(model, base)):
                continue
            raise ConfigError(
                f"{where}: tiers.{name}.models must be some of {', '.join(known)}, not {model!r}",
                param=f"tiers.{name}.models",
            )


def _is_adapter(model: str, base: str) -> bool:
    """Of those that may be loaded while serving."""
    found, _, name = model.partition(":")
    return found == base and ADAPTER_NAME.fullmatch(name) is not None

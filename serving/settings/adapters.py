"""The table `adapters`: low-rank updates of the model that requests choose by name (docs/adapters.md)."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.errors import ConfigError

# No slash, which would read as a path, and no colon, which stands between the model's name and an adapter's.
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}")
MAX_RANK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersConfig:
    slots: int = 0  # adapters that are on the devices at once; 0: none are served
    max_rank: int = MAX_RANK  # of one adapter; memory is taken for it in every slot
    targets: tuple[str, ...] = ()  # linear layers that adapters may update, as q_proj; empty: all that are offered
    named: Mapping[str, Path] = field(default_factory=dict)  # the folders of adapters that are known from the start
    folder: Path | None = None  # whose adapters may be loaded while serving; None: none may


def check_adapters(adapters: AdaptersConfig, taken: Collection[str | None], mesh_pipeline: int, where: str) -> None:
    """`taken` are the names of models. Raises ConfigError."""
    if not adapters.slots and (adapters.named or adapters.folder is not None):
        raise ConfigError(f"{where}: adapters.slots must be at least 1 where there are adapters", param="slots")
    if not adapters.slots and (adapters.max_rank != MAX_RANK or adapters.targets):
        name = "targets" if adapters.targets else "max_rank"
        raise ConfigError(
            f"{where}: adapters.{name} is for adapters.slots of 1 or more: 0 serves no adapters", param=name
        )
    if adapters.slots and mesh_pipeline > 1:
        raise ConfigError(
            f"{where}: adapters.slots is {adapters.slots}, and adapters are not offered where mesh.pipeline is above "
            "1: set it to 0, or split the model by tensor instead",
            param="slots",
        )
    for name in adapters.named:
        if not ADAPTER_NAME.fullmatch(name):
            raise ConfigError(
                f"{where}: adapters.named has {name!r}: a name has up to 128 letters, digits, and _ . @ -",
                param="named",
            )
        if name in taken:
            raise ConfigError(f"{where}: adapters.named has {name!r}, which is the name of a model", param="named")

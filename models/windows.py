"""How far back each layer sees. Families whose layers differ share one block: which layer it is decides."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from models.fields import Fields

UNLIMITED = 1 << 30  # tokens: beyond any context
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Windows:
    """Tokens that each layer sees, itself among them; None for all."""

    sizes: tuple[int | None, ...]  # [L]

    @property
    def slides(self) -> tuple[bool, ...]:
        return tuple(size is not None for size in self.sizes)

    def of(self, layer: Array | int) -> Array | int | None:
        """What `attend` takes. A traced layer chooses on the device, unless all layers see the same."""
        if len(set(self.sizes)) == 1:
            return self.sizes[0]
        if isinstance(layer, int):
            return self.sizes[layer]
        return jnp.asarray([UNLIMITED if size is None else size for size in self.sizes], jnp.int32)[layer]


def read_windows(fields: Fields, layers: int, size: int | None, slides: Callable[[int], bool]) -> Windows:
    """Windows of `size` where `layer_types` says sliding_attention, or, without that list, where `slides(layer)` does.

    Raises CheckpointError for a list that does not fit.
    """
    kinds = fields.strings("layer_types") or [SLIDING if slides(layer) else FULL for layer in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
        raise fields.error("layer_types", f"a list of {layers}, each {FULL} or {SLIDING}")
    if size is None and SLIDING in kinds:
        raise fields.error("layer_types", f"all {FULL}, as there is no sliding window")
    return Windows(tuple(size if kind == SLIDING else None for kind in kinds))


def read_upper_windows(fields: Fields, layers: int) -> Windows:
    """As Qwen's files say it: with `use_sliding_window` the layers from `max_window_layers` on slide, unless
    `sliding_window` is null. Raises CheckpointError."""
    slides = fields.boolean("use_sliding_window", False) and not fields.is_null("sliding_window")
    window = fields.integer("sliding_window", 4096) if slides else None
    lower = fields.integer("max_window_layers", 28, least=0)  # these see everything
    return read_windows(fields, layers, window, lambda layer: window is not None and layer >= lower)

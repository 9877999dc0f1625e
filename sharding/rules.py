"""Which mesh axes split each logical dimension: the one table.

A weight names its dimensions where it is declared (`models/layers.py`); this table says what becomes of each. A
dimension that its axes do not divide is padded with zeros where zeros change nothing, and refused elsewhere.
"""

from dataclasses import dataclass

from jax.sharding import Mesh, PartitionSpec

MODEL_AXES = ("expert", "tensor")  # split what has no experts; in the order of the mesh
EXPERT_AXES = ("data", "expert")  # share out the experts of a layer


@dataclass(frozen=True, slots=True)
class Rule:
    axes: tuple[str, ...] = ()  # of the mesh; () is replicated
    pads: bool = False


RULES: dict[str, Rule] = {
    "vocab": Rule(MODEL_AXES, pads=True),  # V; logits of padding are never drawn
    "model": Rule(),  # D
    "heads": Rule(MODEL_AXES),  # H
    "kv_heads": Rule(MODEL_AXES),  # K, each repeated until there are enough (see `params.kv_copies`)
    "queries": Rule(),  # G, of one KV head: shared out among its copies
    "queries_key_value": Rule(),  # G + 2: the queries likewise; each copy has the key and the value
    "mlp": Rule(MODEL_AXES, pads=True),  # F: a padded column meets a padded row of zeros
    "experts": Rule(EXPERT_AXES),  # E
    "expert_mlp": Rule(("tensor",), pads=True),  # F of one expert
    "states": Rule(MODEL_AXES, pads=True),  # of watched layers, side by side: padding meets a row of zeros
    "layers": Rule(),  # L; a pipeline gives whole layers to its stages (see `models/stages.py`)
    "tokens": Rule(("data",)),  # T and S: each data shard has its own
    "pages": Rule(("data",)),  # P: likewise
}


def spec_of(names: tuple[str | None, ...]) -> PartitionSpec:
    """The partition of an array whose dimensions have these names; None is one that nothing splits.

    Raises KeyError for a name that the table does not have.
    """
    return PartitionSpec(*(None if name is None else (RULES[name].axes or None) for name in names))


def split_of(mesh: Mesh, name: str | None) -> int:
    """Into how many parts a dimension of that name is split."""
    parts = 1
    for axis in () if name is None else RULES[name].axes:
        parts *= mesh.shape[axis]
    return parts

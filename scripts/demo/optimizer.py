"""Muon for the matrices of the layers, Adam for the rest: a fifth fewer seconds to the same loss than AdamW alone."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from optax import contrib

MATRICES = ("qkv", "output", "gate_up", "down")
UPDATE_SIZE = 0.2  # of Muon's step, root mean square: about what Adam's has (Liu et al., arXiv 2502.16982)
ADAM_SHARE = 0.45  # of the rate; the embedding diverges at Muon's
DECAY = 0.05
DIMENSIONS = contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1)


def optimizer() -> optax.GradientTransformation:
    """The optimizer without its rate: the step multiplies by the rate, which follows the clock."""
    muon = contrib.scale_by_muon(weight_dimension_numbers=partial(jax.tree.map, lambda _: DIMENSIONS))
    kinds = {
        "muon": optax.chain(_each_layer(muon), optax.stateless(_scaled)),
        "adam": optax.chain(optax.scale_by_adam(b1=0.9, b2=0.98), optax.scale(ADAM_SHARE)),
    }
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.partition(kinds, lambda params: {name: "muon" if name in MATRICES else "adam" for name in params}),
        optax.add_decayed_weights(
            DECAY,
            mask=lambda params: {name: value.ndim > 1 and not name.endswith("norm") for name, value in params.items()},
        ),
    )


def _scaled(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
    """An orthogonal matrix [I, O] has entries of 1 / sqrt(max(I, O)); brings them to UPDATE_SIZE."""
    return jax.tree.map(lambda update: update * (UPDATE_SIZE * max(update.shape[-2:]) ** 0.5), updates)


def _each_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """`inner` on every layer's matrix [I, O] by itself: on a CPU batched products are half as fast."""

    def split(tree: optax.Params) -> optax.Params:
        return jax.tree.map(lambda stacked: [stacked[layer] for layer in range(stacked.shape[0])], tree)

    def init(params: optax.Params) -> optax.OptState:
        return inner.init(split(params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        changes, state = inner.update(split(updates), state)
        return jax.tree.map(jnp.stack, changes, is_leaf=lambda node: isinstance(node, list)), state

    return optax.GradientTransformation(init, update)

"""The checkpoint of an EAGLE-3 head, loaded beside the model that it guesses for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from models import checkpoint as checkpoints
from models import eagle3
from models.interface import ModelShape
from models.stages import on_abstract_mesh
from serving.config import Deployment
from serving.engine.draft_model import DraftModel, as_setup_errors
from serving.engine.drafting import HeadGuesser
from serving.engine.limits import WatchedLayers
from serving.errors import ConfigError
from sharding.params import placement_of

HEAD = "EAGLE-3 head"


def load_head(
    deployment: Deployment,
    target: Any,
    shape: ModelShape,
    max_model_len: int,
    dtype: Any,
    mesh: Mesh,
    report: Callable[[str, int, int], None],
) -> DraftModel | None:
    """For `target`, of this `shape`, whose weights are on the mesh. None where the deployment has no head. Raises
    CheckpointError, and ConfigError where the two do not go together, or the head cannot be split over the mesh."""
    path = deployment.speculation.checkpoint
    if deployment.speculation.kind != "eagle3" or path is None:
        return None
    with as_setup_errors(HEAD):
        table = target.embedding.table.get_value()
        gives_states = checkpoints.gives_states(deployment.model.checkpoint)
        config = _described(path, shape, table.shape[1], gives_states)
        head = eagle3.load(
            path,
            config,
            dtype,
            placement=placement_of(mesh, config.sizes.heads, config.sizes.kv_heads),
            table=table,
            max_length=max_model_len,
            progress=lambda done, total: report(f"loading the {HEAD}", done, total),
        )
    return _beside(head, config, shape, dtype)


def head_shapes(path: Path, shape: ModelShape, width: int, dtype: Any, mesh: Mesh, *, gives_states: bool) -> DraftModel:
    """The head from its config.json alone, each leaf a jax.ShapeDtypeStruct as it lies on the mesh, for a model of this
    `shape` and `width` (D) whose family gives its hidden states or does not. Raises as `load_head`."""
    with as_setup_errors(HEAD):
        config = _described(path, shape, width, gives_states)
        placement = placement_of(mesh, config.sizes.heads, config.sizes.kv_heads)
        return _beside(on_abstract_mesh(eagle3.abstract(config, dtype), placement), config, shape, dtype)


def _beside(head: Any, config: eagle3.Eagle3Config, shape: ModelShape, dtype: Any) -> DraftModel:
    watched = WatchedLayers(layers=config.watched, width=config.states_width, dtype=jnp.dtype(dtype).name)
    return DraftModel(head, config.shape(), HeadGuesser(shape.vocab_size), watched)


def _described(path: Path, shape: ModelShape, width: int, gives_states: bool) -> eagle3.Eagle3Config:
    """Raises ConfigError where the head and the model do not go together, and the model's CheckpointError."""
    if not gives_states:
        raise ConfigError(
            'speculation.kind is "eagle3", but models of this architecture do not give their hidden states: Llama, '
            'Qwen2 and Qwen3 do; take "ngram" or "draft"',
            param="kind",
        )
    config = eagle3.describe(path, shape.num_layers)
    _check_sizes(path, config, shape, width)
    return config


def _check_sizes(path: Path, config: eagle3.Eagle3Config, shape: ModelShape, width: int) -> None:
    for what, found, right in (
        ("tokens", config.sizes.vocab_size, shape.vocab_size),
        ("wide hidden states", config.target_d, width),
    ):
        if found != right:
            raise ConfigError(
                f"speculation.checkpoint: the EAGLE-3 head {path} is for a model with {found} {what}, and the "
                f"deployment's has {right}: it was trained for another one",
                param="checkpoint",
            )

"""The checkpoint of an EAGLE-3 head, loaded beside the model that it guesses for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from models import checkpoint as checkpoints
from models import eagle3
from models.errors import CheckpointError as ModelCheckpointError
from models.interface import ModelShape
from serving.config import Deployment
from serving.engine.draft_model import DraftModel
from serving.engine.drafting import HeadGuesser
from serving.engine.limits import WatchedLayers
from serving.errors import CheckpointError, ConfigError
from sharding.params import placement_of


def load_head(
    deployment: Deployment,
    target: Any,
    shape: ModelShape,
    max_model_len: int,
    dtype: Any,
    mesh: Mesh,
    report: Callable[[str, int, int], None],
) -> DraftModel | None:
    """For `target`, of this `shape`, whose weights are on the one device. None where the deployment has no head. Raises
    CheckpointError, and ConfigError where the two do not go together."""
    path = deployment.speculation.checkpoint
    if deployment.speculation.kind != "eagle3" or path is None:
        return None
    try:
        if not checkpoints.gives_states(deployment.model.checkpoint):
            raise ConfigError(
                'speculation.kind is "eagle3", but models of this architecture do not give their hidden states: Llama, '
                'Qwen2 and Qwen3 do; take "ngram" or "draft"',
                param="kind",
            )
        config = eagle3.describe(path, shape.num_layers)
        table = target.embedding.table.get_value()
        _check_sizes(path, config, shape, table.shape[1])
        head = eagle3.load(
            path,
            config,
            dtype,
            placement=placement_of(mesh, config.sizes.heads, config.sizes.kv_heads),
            table=table,
            max_length=max_model_len,
            progress=lambda done, total: report("loading the EAGLE-3 head", done, total),
        )
    except ModelCheckpointError as error:
        raise CheckpointError(f"speculation.checkpoint: {error}") from error
    watched = WatchedLayers(layers=config.watched, width=config.states_width, dtype=jnp.dtype(dtype).name)
    return DraftModel(head, config.shape(), HeadGuesser(shape.vocab_size), watched)


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

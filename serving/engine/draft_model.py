"""The checkpoint of a draft model, loaded beside the model that it guesses for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from models import checkpoint as checkpoints
from models.errors import CheckpointError as ModelCheckpointError
from models.interface import LayerForm, ModelShape
from models.stages import Stages, on_abstract_mesh
from pallas_kernels.dispatch import AttentionBody
from serving.config import Deployment
from serving.engine.drafting import DraftGuesser, Guesser
from serving.engine.hidden_pages import states_form
from serving.engine.limits import ExecutorLimits, WatchedLayers
from serving.engine.placement import bytes_on_a_device, pool_on_mesh, pool_spec
from serving.errors import CheckpointError, ConfigError
from sharding.mesh import MeshError
from sharding.params import Placement, placement_of


@dataclass(frozen=True, slots=True)
class DraftModel:
    model: Any
    shape: ModelShape
    guesser: Guesser
    watched: WatchedLayers | None = None  # of the model that it guesses for, whose hidden states it reads

    def page_bytes(self, limits: ExecutorLimits, body: AttentionBody, cache_dtype: Any, mesh: Mesh) -> int:
        """Of a device, what one page of its own takes, and one of the hidden states that it reads; `limits` are of a
        pool with a single page."""
        own = pool_on_mesh(body, pool_spec(self.shape, limits, cache_dtype, mesh), mesh)
        states = () if self.watched is None else states_form(self.watched, limits, mesh)
        return bytes_on_a_device((own, states))


def load_draft(
    deployment: Deployment,
    target: ModelShape,
    max_model_len: int,
    dtype: Any,
    layers: LayerForm,
    mesh: Mesh,
    report: Callable[[str, int, int], None],
) -> DraftModel | None:
    """None where the deployment has no draft model. Raises CheckpointError, and ConfigError where the two do not go
    together."""
    path = deployment.speculation.checkpoint
    if deployment.speculation.kind != "draft" or path is None:
        return None
    _, placement = draft_shapes(path, target, dtype, layers, mesh)
    with as_setup_errors("draft model"):
        model, shape, _ = checkpoints.load(
            path,
            dtype,
            layers=layers,
            max_length=max_model_len,
            placement=placement,
            progress=lambda done, total: report("loading the draft model", done, total),
        )
    assert not isinstance(model, Stages)  # a pipeline has no speculation
    return DraftModel(model, shape, DraftGuesser())


def draft_shapes(
    path: Path, target: ModelShape, dtype: Any, layers: LayerForm, mesh: Mesh
) -> tuple[DraftModel, Placement]:
    """The draft model from its config.json alone, each leaf a jax.ShapeDtypeStruct as it lies on the mesh, and where it
    lies. Raises as `load_draft`."""
    with as_setup_errors("draft model"):
        planned, shape, _ = checkpoints.abstract(path, dtype, mesh=mesh, layers=layers)
        if shape.vocab_size != target.vocab_size:
            raise ConfigError(
                f"speculation.checkpoint: the draft model {path} has {shape.vocab_size} tokens, and the model that it "
                f"is to guess for {target.vocab_size}: both must have the same tokenizer",
                param="checkpoint",
            )
        if shape.experts:
            raise ConfigError(
                f"speculation.checkpoint: the draft model {path} has routed experts: take a dense one",
                param="checkpoint",
            )
        placement = placement_of(mesh, shape.num_heads, shape.num_kv_heads)
        return DraftModel(on_abstract_mesh(planned, placement), shape, DraftGuesser()), placement


@contextmanager
def as_setup_errors(what: str) -> Iterator[None]:
    """Of `what` is in `speculation.checkpoint`. Raises CheckpointError for what is wrong with the folder, and
    ConfigError where the model in it cannot be split over the mesh."""
    try:
        yield
    except MeshError as error:
        raise ConfigError(f"speculation.checkpoint: the {what} on this mesh: {error}", param="checkpoint") from error
    except ModelCheckpointError as error:
        raise CheckpointError(f"speculation.checkpoint: {error}") from error

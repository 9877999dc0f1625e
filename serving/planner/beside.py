"""What an engine holds beside the chat model: what guesses for it, an encoder, and the sums of texts that it pools.

As the engine itself makes them, from shapes: of their folders only what describes them is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, SingleDeviceSharding

from models import bert, eagle3
from models import checkpoint as checkpoints
from models.errors import CheckpointError as ModelCheckpointError
from models.interface import ModelShape
from models.tensor_files import TensorFiles
from pallas_kernels.dispatch import AttentionBody
from serving.config import Deployment, EmbeddingsConfig
from serving.engine.draft_model import DraftModel, as_setup_errors, draft_shapes
from serving.engine.drafter import lowered_draft
from serving.engine.eagle_head import HEAD, head_shapes
from serving.engine.encoder import BATCH_TOKENS, batch_sizes, lowered_vectors
from serving.engine.encoder_folder import read_encoder
from serving.engine.hidden_pages import states_form
from serving.engine.limits import ExecutorLimits
from serving.engine.placement import bytes_on_a_device, pool_on_mesh, pool_spec
from serving.engine.stage import stages_of
from serving.errors import ConfigError
from serving.planner.compiled import Holdings

_SUM_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """In bytes of the device that holds most, where nothing else is said."""

    name: str
    weights: int = 0
    pages: int = 0  # its own, of one position
    states: int = 0  # of the chat model's layers, of one position, that it reads
    sums: int = 0  # of texts, for as long as the engine lives


class Companion(Protocol):
    """One that has programs of its own."""

    @property
    def name(self) -> str: ...

    def holdings(self) -> Beside: ...

    def temporaries(self, num_pages: int) -> int:
        """Of its largest program, beside so many pages. Raises RuntimeError where it needs more than there is."""
        ...


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A draft model or an EAGLE-3 head, as shapes on the mesh of the model that it guesses for."""

    name: str
    form: DraftModel
    shared: int = 0  # bytes of its weights on a device that are the chat model's too


@dataclass(frozen=True, slots=True)
class AbstractGuesser:
    """A small model for an executor that is built so; `limits.watched` is what it asks for itself."""

    small: SmallModel
    limits: ExecutorLimits
    body: AttentionBody
    page_dtype: Any
    mesh: Mesh

    @property
    def name(self) -> str:
        return self.small.name

    def holdings(self) -> Beside:
        one = replace(self.limits, num_pages=1)
        form = self.small.form
        pages = pool_on_mesh(self.body, pool_spec(form.shape, one, self.page_dtype, self.mesh), self.mesh)
        states = () if form.watched is None else states_form(form.watched, one, self.mesh)
        return Beside(
            name=self.name,
            weights=bytes_on_a_device(nnx.state(form.model)) - self.small.shared,
            pages=bytes_on_a_device(pages) // one.page_size,
            states=bytes_on_a_device(states) // one.page_size,
        )

    def temporaries(self, num_pages: int) -> int:
        return _temporaries(self.lowered(num_pages))

    def lowered(self, num_pages: int) -> jax.stages.Lowered:
        """Its largest program."""
        limits = replace(self.limits, num_pages=num_pages, watched=None)
        form = self.small.form
        (stage,) = stages_of(form.model, form.shape, limits, self.body, self.page_dtype, self.mesh)
        given = () if form.watched is None else (states_form(form.watched, limits, self.mesh),)
        largest = limits.layout_for(limits.token_buckets[-1])
        return lowered_draft(stage, form.guesser, largest, limits, given)


class AbstractEncoder:
    """On one device, in float32, whatever the mesh of the chat model."""

    name = "encoder"

    def __init__(self, config: EmbeddingsConfig, device: Any) -> None:
        """Raises CheckpointError or ConfigError."""
        self._longest = read_encoder(config).max_tokens
        families = cast(Any, (bert,))
        try:
            model, _, _ = checkpoints.abstract(config.checkpoint, jnp.float32, families=families)
        except ModelCheckpointError as error:
            raise ConfigError(f"embeddings.checkpoint: {error}", param="checkpoint") from error
        self._model = _on_device(model, device)

    def holdings(self) -> Beside:
        return Beside(name=self.name, weights=bytes_on_a_device(nnx.state(self._model)))

    def temporaries(self, num_pages: int) -> int:
        texts = batch_sizes(self._longest, BATCH_TOKENS)[self._longest]
        return _temporaries(lowered_vectors(self._model, texts, self._longest))


def guesser_of(
    deployment: Deployment, family: Any, config: Any, dtype: Any, mesh: Mesh, shape: ModelShape
) -> SmallModel | None:
    """Of the deployment's chat model, which `family` and `config` describe. None where nothing guesses on the device.
    Raises CheckpointError or ConfigError."""
    speculation = deployment.speculation
    path = speculation.checkpoint
    if path is None or speculation.kind not in ("draft", "eagle3"):
        return None
    if speculation.kind == "draft":
        return SmallModel("draft model", draft_shapes(path, shape, dtype, "stacked", mesh)[0])
    width = family.build(config, dtype, seed=None, layers="stacked").embedding.table.get_value().shape[1]
    head = head_shapes(path, shape, width, dtype, mesh, gives_states=getattr(family, "gives_states", False))
    shared = bytes_on_a_device(nnx.state(head.model.embedding)) if _takes_table(path) else 0
    return SmallModel(HEAD, head, shared)


def pooled_sums(limits: ExecutorLimits, width: int) -> Beside:
    """Of texts that the served model embeds: a row of `width` for each sequence (`serving/engine/pooler.py`)."""
    return Beside(name="pooling", sums=limits.shards * limits.max_num_seqs * width * _SUM_BYTES)


def fixed_bytes(holdings: Holdings, beside: Sequence[Beside]) -> int:
    """What is there whatever the context: weights, rows and sums."""
    return holdings.weights + holdings.rows + sum(one.weights + one.sums for one in beside)


def position_bytes(holdings: Holdings, beside: Sequence[Beside]) -> int:
    """All that one position of context takes."""
    return holdings.position + sum(one.pages + one.states for one in beside)


def _takes_table(path: Path) -> bool:
    """Whether the head has no token vectors of its own. Where its weights are not at hand it is taken to have."""
    if not any(path.glob("*.safetensors")):
        return False
    with as_setup_errors(HEAD), TensorFiles(path) as files:
        return eagle3.EMBEDDING not in files


def _on_device(model: Any, device: Any) -> Any:
    """A model of jax.ShapeDtypeStructs, as it would lie on one device."""
    graph, state = nnx.split(model)
    place = SingleDeviceSharding(device)
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state)
    return nnx.merge(graph, placed)


def _temporaries(lowered: jax.stages.Lowered) -> int:
    memory = lowered.compile().memory_analysis()
    if memory is None:
        raise RuntimeError("this compiler does not tell the memory of a program")
    return memory.temp_size_in_bytes

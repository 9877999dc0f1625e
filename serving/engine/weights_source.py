"""How the weights of this engine are read, so that others of the same form can be read into its programs later."""

import dataclasses
import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models import checkpoint as checkpoints
from models.errors import CheckpointError as ModelCheckpointError
from models.interface import Model, ModelShape
from models.leaves import Progress
from models.quantization import QuantizationError
from models.rope import use_max_length
from models.stages import Stages
from models.tensor_files import read_json
from serving.engine.device_memory import Leaves
from serving.engine.memory import free_memory
from serving.errors import ConfigError, RequestError
from sharding.params import Placement

_TOKENIZER = "tokenizer.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """`kept` are the options of `models.checkpoint.load` that say how weights are kept."""

    checkpoint: Path  # the first one, whose programs are compiled
    dtype: Any
    kept: Mapping[str, Any]
    max_length: int
    placement: Placement
    finish: Callable[[Model | Stages], None]  # what a model needs before it is taken apart

    @property
    def num_devices(self) -> int:
        return self.placement.mesh.devices.size

    def load(self, folder: Path, progress: Progress | None = None) -> tuple[Model | Stages, ModelShape]:
        """Raises as `models.checkpoint.load` does."""
        model, shape, _ = checkpoints.load(
            folder,
            self.dtype,
            **self.kept,
            max_length=self.max_length,
            placement=self.placement,
            progress=progress,
        )
        return model, shape

    def check(self, folder: Path, room: int) -> None:
        """Refuses, before any weight is read, a checkpoint that these programs were not compiled for, or whose
        `room` bytes on a device are not free. Raises RequestError."""
        try:
            mine, theirs = (self._described(path) for path in (self.checkpoint, folder))
        except (ModelCheckpointError, QuantizationError) as error:
            raise _refusal(str(error)) from error
        if found := differences(mine[1], theirs[1]):
            raise _refusal(f"its config.json differs from the served one's in {', '.join(found)}")
        if mine[0] != theirs[0]:
            raise _refusal("its weights are kept in other shapes or types than the served ones")
        tokenizers = [path / _TOKENIZER for path in (self.checkpoint, folder)]
        if all(path.is_file() for path in tokenizers) and read_json(tokenizers[0]) != read_json(tokenizers[1]):
            raise _refusal("its tokenizer.json is another one, and the served one stays in use")
        if room and (free := free_memory(self.placement.mesh)) < room:
            raise _refusal(
                f"it needs {room} bytes of a device beside the weights that are served, and {free} are free: put the "
                "engine to sleep without its weights first, load, and wake it"
            )

    def read(self, folder: Path) -> list[Leaves]:
        """The weights of each stage, on its devices. Raises RequestError; nothing that is served changes."""
        try:
            model, _ = self.load(folder)
        except (ModelCheckpointError, QuantizationError, jax.errors.JaxRuntimeError, OSError) as error:
            raise _refusal(str(error)) from error
        self.finish(model)
        leaves = _leaves_of_stages(model)
        del model
        gc.collect()  # a module refers to itself: what is left of it would keep these weights when others have come
        return leaves

    def _described(self, folder: Path) -> tuple[list[Any], Any]:
        """The form of each leaf, and the family's config."""
        model, _, config = checkpoints.abstract(folder, self.dtype, mesh=self.placement.mesh, **self.kept)
        leaves = jax.tree.leaves(nnx.state(model))
        return [(leaf.shape, leaf.dtype) for leaf in leaves], config


class RandomWeights(WeightsSource):
    """Weights of the forms that config.json tells, for what depends on forms alone."""

    def load(self, folder: Path, progress: Progress | None = None) -> tuple[Model | Stages, ModelShape]:
        mesh = self.placement.mesh
        if mesh.shape["pipeline"] > 1:
            raise ConfigError("random weights are not made for a pipeline: set mesh.pipeline to 1", param="pipeline")
        model, shape, _ = checkpoints.abstract(folder, self.dtype, mesh=mesh, **self.kept)
        use_max_length(model, self.max_length)
        graph, state = nnx.split(model)
        forms, tree = jax.tree.flatten(self.placement.abstract(state))
        return nnx.merge(graph, jax.tree.unflatten(tree, [_random(i, form) for i, form in enumerate(forms)])), shape


def _random(number: int, form: jax.ShapeDtypeStruct) -> jax.Array:
    """Numbers that keep the sums of a layer small."""

    def draw() -> jax.Array:
        key = jax.random.key(number)
        if jnp.issubdtype(form.dtype, jnp.integer):
            ends = jnp.iinfo(form.dtype)
            return jax.random.randint(key, form.shape, max(ends.min + 1, -127), min(ends.max, 127), jnp.int32).astype(
                form.dtype
            )
        return (0.02 * jax.random.normal(key, form.shape, jnp.float32)).astype(form.dtype)

    return jax.jit(draw, out_shardings=form.sharding)()


def _leaves_of_stages(model: Model | Stages) -> list[Leaves]:
    parts = model.parts if isinstance(model, Stages) else [model]
    return [tuple(jax.tree.leaves(nnx.split(part)[1])) for part in parts]


def differences(mine: Any, theirs: Any) -> list[str]:
    """The names of the fields in which two configs of a family differ."""
    if type(mine) is not type(theirs):
        return ["the model's family"]
    if not dataclasses.is_dataclass(mine):
        return [] if mine == theirs else ["its values"]
    fields = (field.name for field in dataclasses.fields(mine))
    return [name for name in fields if getattr(mine, name) != getattr(theirs, name)]


def _refusal(why: str) -> RequestError:
    return RequestError(f"the checkpoint cannot be loaded: {why}", param="checkpoint", code="checkpoint_refused")

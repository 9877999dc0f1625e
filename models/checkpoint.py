"""A checkpoint directory -> a model on its devices, leaf by leaf.

Two layouts are read: the hub's (`hub_weights.py`), and weft's own, which `convert` writes (`converted.py`). Of either,
the most that is on the host at once is a leaf of one layer.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from models.converted import ConvertedWeights, is_converted, write_converted
from models.errors import CheckpointError
from models.hub import Tensors
from models.hub_weights import HubWeights
from models.interface import Family, LayerForm, Model, ModelShape
from models.leaves import Assembly, Progress, parts_of
from models.quantization import Products, Recipe, quantize_model
from models.quantized_checkpoint import described_weights, packed_names
from models.registry import FAMILIES, family_of
from models.rope import use_max_length
from models.stages import StagedAssembly, Stages
from models.tensor_files import TensorFiles, read_json
from sharding.mesh import one_device
from sharding.params import Placement

WIDE = Products()


def load(
    directory: Path,
    dtype: Any,
    *,
    progress: Progress | None = None,
    placement: Placement | None = None,
    layers: LayerForm = "stacked",
    max_length: int | None = None,
    quantization: Recipe | None = None,
    products: Products = WIDE,
    families: Sequence[Family] = FAMILIES,
) -> tuple[Model | Stages, ModelShape, Any]:
    """The model with its weights in `dtype`, the numbers that the engine needs, and the family's config.

    placement: where the weights go; without it, to the first device.
    max_length: tokens of the longest sequence that it will see; without it, all that the checkpoint was made for.
    A rope that depends on it is chosen by it (see rope.LongRope).
    quantization: the weights to keep in fewer bits, which the checkpoint has in 16 or 32; products: how they multiply.

    Raises CheckpointError for what is missing, unexpected, malformed or not offered, before any weight is read;
    ValueError for a dtype other than float32 and bfloat16; QuantizationError for weights that cannot be kept so.
    """
    _check_dtype(dtype)
    source = _Source(directory, families, products, quantization)
    placement = placement or Placement(one_device(), kv_copies=1)
    model, listed = (source.shapes(dtype, form, placement.mesh) for form in (layers, "list"))
    if max_length is not None:
        use_max_length(model, max_length)
    staged = placement.mesh.shape["pipeline"] > 1
    assembly = StagedAssembly(model, placement) if staged else Assembly(model)

    def fill(weights: HubWeights | ConvertedWeights) -> None:
        for part, leaves in parts_of(listed):
            # What is outside the layers is read onto the first leaf's stage; the assembly hands on what is not at home.
            home = assembly.placement(leaves[0].path) if isinstance(assembly, StagedAssembly) else placement
            for leaf, array in zip(leaves, weights.read(part, leaves, home), strict=True):
                assembly.put(leaf.path, array)

    if is_converted(directory):
        fill(ConvertedWeights(directory, listed, progress, dtype=dtype))
    else:
        with TensorFiles(directory) as files:
            fill(source.hub_weights(files, listed, progress))
    return assembly.model(), source.family.shape(source.config), source.config


def convert(
    source: Path,
    target: Path,
    dtype: Any | None = None,
    *,
    progress: Progress | None = None,
    families: Sequence[Family] = FAMILIES,
) -> None:
    """Writes the hub checkpoint `source` in weft's own layout. Raises as `load` does.

    dtype: of the weights; without it bfloat16 where all of them are, else float32.
    """
    if is_converted(source):
        raise CheckpointError(f"{source}: it is converted already")
    described = _Source(source, families)
    with TensorFiles(source) as files:
        if dtype is None:
            # U8 are halves of packed tensors (see mxfp4.py), whose numbers bfloat16 holds exactly.
            dtype = jnp.bfloat16 if {files.dtype(name) for name in files} <= {"BF16", "U8"} else jnp.float32
        _check_dtype(dtype)
        listed = described.shapes(dtype, "list")
        write_converted(source, listed, described.hub_weights(files, listed, progress), target)


def abstract(
    directory: Path,
    dtype: Any,
    *,
    layers: LayerForm = "stacked",
    mesh: Mesh | None = None,
    quantization: Recipe | None = None,
    products: Products = WIDE,
    families: Sequence[Family] = FAMILIES,
) -> tuple[Model, ModelShape, Any]:
    """As `load`, from config.json alone: each leaf is a jax.ShapeDtypeStruct. The mesh may cut through groups."""
    source = _Source(directory, families, products, quantization)
    return source.shapes(dtype, layers, mesh), source.family.shape(source.config), source.config


def hub_names(directory: Path, families: Sequence[Family] = FAMILIES) -> Tensors:
    """What the hub calls the weights of this checkpoint's model, in whichever layout they lie there."""
    source = _Source(directory, families)
    return source.family.tensors(source.config)


def gives_states(directory: Path, families: Sequence[Family] = FAMILIES) -> bool:
    """Whether this checkpoint's model has `Decoder.with_states`, tried and tested."""
    return getattr(_Source(directory, families).family, "gives_states", False)


class _Source:
    """What config.json says: the family, its config, and how the weights are kept."""

    def __init__(
        self,
        directory: Path,
        families: Sequence[Family],
        products: Products = WIDE,
        quantization: Recipe | None = None,
    ) -> None:
        """Raises CheckpointError."""
        if is_converted(directory):
            products = replace(products, keeps_mxfp4=False)  # they were widened when they were converted
        path = directory / "config.json"
        fields = read_json(path)
        if not isinstance(fields, dict):
            raise CheckpointError(f"{path}: it must be a JSON object")
        self.family = family_of(fields, families)
        self.config = self.family.parse(fields)
        self._described = described_weights(self.family, self.config, fields, products, quantization, str(path))
        self._products = products

    def shapes(self, dtype: Any, layers: LayerForm, mesh: Mesh | None = None) -> Model:
        """The model with its shapes alone. Raises QuantizationError."""
        model = self.family.build(self.config, dtype, seed=None, layers=layers)
        quantize_model(model, self._described.recipe, self._products, mesh)
        return model

    def hub_weights(self, files: TensorFiles, listed: Model, progress: Progress | None) -> HubWeights:
        table, layout = self.family.tensors(self.config), self._described.layout
        packed = packed_names(listed, table) if layout is not None else ()
        return HubWeights(files, table, progress, layout=layout, packed=packed)


def _check_dtype(dtype: Any) -> None:
    if jnp.dtype(dtype) not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        raise ValueError(f"weights cannot be loaded as {jnp.dtype(dtype)}; float32 and bfloat16 are offered")

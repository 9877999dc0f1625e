"""The engine that a deployment would have on a machine that is not at hand, as shapes: the chat model, and what is
beside it."""

import dataclasses
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from models.errors import CheckpointError as ModelCheckpointError
from models.interface import Family
from models.quantization import QuantizationError
from models.quantized_checkpoint import described_weights
from models.registry import family_of
from models.sequence_parallel import fewest_tokens
from models.tensor_files import read_json
from serving.config import Deployment
from serving.engine.device import most_guesses
from serving.engine.kernels import body_for
from serving.engine.limits import ExecutorLimits, of_a_lane, of_a_shard
from serving.engine.reduced_precision import page_dtype, products_of, recipe_of
from serving.errors import ConfigError
from serving.generation.context_window import context_window
from serving.planner.beside import (
    AbstractEncoder,
    AbstractGuesser,
    Beside,
    Companion,
    SmallModel,
    guesser_of,
    pooled_sums,
)
from serving.planner.compiled import AbstractDeployment, Holdings
from sharding.mesh import MeshError, make_mesh
from sharding.topology import Topology, devices_of, parse_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractEngine:
    """What the engine of a deployment would hold on a machine, as shapes."""

    machine: Topology
    mesh: Mesh
    limits: ExecutorLimits
    chat_model: AbstractDeployment
    holdings: Holdings
    companions: Sequence[Companion]
    beside: tuple[Beside, ...]  # of the companions, and what has no programs of its own


def abstract_engine(deployment: Deployment, topology: str) -> AbstractEngine:
    """Raises ConfigError."""
    family, config, fields = read_architecture(deployment)
    allowed = context_window(fields, family.shape(config).max_position)
    window = allowed.of(deployment.engine.max_model_len, deployment.name)
    try:
        machine = parse_topology(topology)
        mesh = make_mesh(dataclasses.asdict(deployment.mesh), devices_of(machine))
        limits = _limits(deployment, window, mesh, machine.chip.kind)
        dtype = jnp.dtype(deployment.model.dtype or "bfloat16")
        guesses = most_guesses(deployment.speculation, mesh.shape)
        small = guesser_of(deployment, family, config, dtype, mesh, family.shape(config))
        limits = dataclasses.replace(limits, guesses=guesses, watched=None if small is None else small.form.watched)
        body = body_for(deployment.engine.kernels, machine.chip.kind)
        products = products_of(deployment.model, machine.chip, body, on_cpu=False, devices=mesh.devices.size)
        kept = described_weights(family, config, fields, products, recipe_of(deployment.model), deployment.name)
        abstract = AbstractDeployment(
            family,
            config,
            dtype,
            limits,
            mesh,
            body,
            recipe=kept.recipe,
            products=products,
            cache_dtype=jnp.dtype(page_dtype(deployment.engine.cache_dtype, dtype.name)),
            expert_exchange=deployment.engine.expert_exchange,
        )
    except MeshError as error:
        raise ConfigError(f"mesh: {error}", param="mesh") from error
    except (QuantizationError, ModelCheckpointError) as error:
        raise ConfigError(f"quantization: {error}", param="quantization") from error
    except (ValueError, RuntimeError) as error:
        raise ConfigError(str(error), param="topology") from error
    companions = _companions(deployment, small, abstract, limits, mesh)
    beside = tuple(companion.holdings() for companion in companions)
    if deployment.model_embeddings is not None:
        beside = (*beside, pooled_sums(limits, abstract.width))
    return AbstractEngine(
        machine=machine,
        mesh=mesh,
        limits=limits,
        chat_model=abstract,
        holdings=abstract.holdings(),
        companions=companions,
        beside=beside,
    )


def read_architecture(deployment: Deployment) -> tuple[Family, Any, dict[str, Any]]:
    """The family, its config, and the fields of `model.architecture` or of the checkpoint's config.json.

    Raises ConfigError.
    """
    path = deployment.model.architecture or deployment.model.checkpoint / "config.json"
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8")) if path.suffix == ".toml" else read_json(path)
    except ModelCheckpointError as error:  # which names the file
        raise ConfigError(str(error), param="architecture") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", param="architecture") from error
    try:
        family = family_of(fields)
        return family, family.parse(fields), fields
    except ModelCheckpointError as error:
        raise ConfigError(f"{path}: {error}", param="architecture") from error


def _limits(deployment: Deployment, window: int, mesh: Mesh, platform: str) -> ExecutorLimits:
    """As the engine would be built, with the two steps that matter most: all sequences decoding, a full prefill."""
    shards, lanes = mesh.shape["data"], mesh.shape["pipeline"]
    engine = of_a_lane(of_a_shard(deployment.engine, shards), lanes)
    return ExecutorLimits(
        max_num_seqs=engine.max_num_seqs,
        max_model_len=window,
        page_size=engine.page_size,
        num_pages=1,
        token_buckets=tuple(sorted({engine.max_num_seqs, engine.max_num_batched_tokens})),
        shards=shards,
        sequence_parallel_tokens=fewest_tokens(engine.sequence_parallel_tokens, platform),
    )


def _companions(
    deployment: Deployment, small: SmallModel | None, abstract: AbstractDeployment, limits: ExecutorLimits, mesh: Mesh
) -> list[Companion]:
    found: list[Companion] = []
    if small is not None:
        found.append(AbstractGuesser(small, limits, abstract.body, abstract.page_dtype, mesh))
    if deployment.embeddings is not None:
        found.append(AbstractEncoder(deployment.embeddings, mesh.devices.flat[0]))
    return found

"""The plan of a deployment: does it fit a machine that is not at hand, how fast can it be there, and what would fit."""

import dataclasses
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from models.errors import CheckpointError as ModelCheckpointError
from models.interface import Family, ModelShape
from models.quantization import QuantizationError
from models.quantized_checkpoint import described_weights
from models.registry import family_of
from models.sequence_parallel import fewest_tokens
from models.split_experts import ExpertExchange, Way, Wish
from models.tensor_files import read_json
from serving.config import Deployment
from serving.engine.device import most_guesses
from serving.engine.kernels import body_for
from serving.engine.limits import ExecutorLimits, of_a_lane, of_a_shard
from serving.engine.reduced_precision import page_dtype, products_of, recipe_of
from serving.errors import ConfigError
from serving.planner import roofline
from serving.planner.beside import (
    AbstractEncoder,
    AbstractGuesser,
    Beside,
    Companion,
    SmallModel,
    guesser_of,
    pooled_sums,
)
from serving.planner.compiled import AbstractDeployment, CompiledStep, Holdings
from serving.planner.roofline import Footprint, Step
from sharding.chips import Chip
from sharding.mesh import MeshError, divisors, make_mesh, stage_meshes
from sharding.topology import devices_of, parse_topology

DECODE_SEQUENCES = (1, 8, 32, 64, 128, 256)
CONTEXTS = (1024, 8192)
PREFILL_TOKENS = (512, 2048, 8192, 32768)
POOL_SHARE = 0.8  # of what the weights leave, taken for pages while compiling: the rest is for temporaries
SHORTEST = 256  # tokens: a window below it is not worth advising
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # begins what XLA says

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All bytes are of one device. What does not fit has no estimates, and has advice instead."""

    deployment: str
    topology: str
    mesh: dict[str, int]
    devices: int  # that the mesh uses
    memory: int  # of a device
    holdings: Holdings
    beside: tuple[Beside, ...]  # what the same engine holds for other ends
    shards: int  # data shards, each with its own pages
    steps: dict[int, CompiledStep]  # by tokens, of all shards
    expert_ways: dict[int, Way]  # how routed experts are joined, by the same tokens
    temporaries_beside: dict[str, int]  # of the largest program of what is beside, by its name
    max_model_len: int
    decode: dict[int, list[Step]]  # context -> by DECODE_SEQUENCES
    prefill: list[Step]  # by PREFILL_TOKENS
    advice: list[str]

    @property
    def temporaries(self) -> int:
        """Of the largest program: one runs at a time."""
        return max((*(step.temporaries for step in self.steps.values()), *self.temporaries_beside.values()), default=0)

    @property
    def positions(self) -> int:
        """Of context that pages have room for, over all sequences; negative where the model alone does not fit."""
        return self.shards * self.positions_of_a_shard

    @property
    def positions_of_a_shard(self) -> int:
        return (self.memory - self.fixed - self.temporaries) // self.position

    @property
    def fixed(self) -> int:
        """What is there whatever the context: weights, rows and sums."""
        return _fixed(self.holdings, self.beside)

    @property
    def position(self) -> int:
        """All that one position of context takes."""
        return _position(self.holdings, self.beside)

    @property
    def fits(self) -> bool:
        """Whether one sequence of full length can be served."""
        return bool(self.steps) and self.positions_of_a_shard >= self.max_model_len


def make_plan(deployment: Deployment, topology: str | None, progress: Progress = lambda what: None) -> Plan:
    """Compiles the deployment for `topology`, or for the one that it names itself.

    Raises ConfigError for a topology, mesh or model that cannot be, and where a compiler is missing.
    """
    wanted = topology or deployment.plan.topology
    if wanted is None:
        raise ConfigError("say what to plan for: --topology, as in v5p:2x2x2 or h100:8, or plan.topology in the file")
    family, config, fields = read_architecture(deployment)
    try:
        machine = parse_topology(wanted)
        sizes = dataclasses.asdict(deployment.mesh)
        mesh = make_mesh(sizes, devices_of(machine))
        limits = _limits(deployment, family.shape(config), mesh, machine.chip.kind)
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
    holdings, shape = abstract.holdings(), abstract.shape
    companions = _companions(deployment, small, abstract, limits, mesh)
    beside = tuple(companion.holdings() for companion in companions)
    if deployment.model_embeddings is not None:
        beside = (*beside, pooled_sums(limits, abstract.width))
    progress(f"compiling for {machine}: steps of {' and '.join(map(str, limits.token_buckets))} tokens")
    compiled, temporaries = _compiled_if_it_fits(abstract, holdings, companions, beside, machine.chip, limits)
    plan = Plan(
        deployment=deployment.name,
        topology=str(machine),
        mesh={axis: size for axis, size in sizes.items() if size > 1},
        devices=mesh.devices.size,
        memory=machine.chip.memory,
        holdings=holdings,
        beside=beside,
        shards=limits.shards,
        steps=compiled,
        temporaries_beside=temporaries,
        expert_ways=_expert_ways(mesh, deployment.engine.expert_exchange, shape, limits),
        max_model_len=limits.max_model_len,
        decode={},
        prefill=[],
        advice=[],
    )
    if not plan.fits:
        return dataclasses.replace(plan, advice=_advice(plan, shape, machine.chip))
    tokens = limits.shards * limits.max_num_seqs
    footprint = _footprint(plan, shape, tokens, limits.shards)
    alone = _footprint(plan, shape, tokens, 1)  # one prompt is one shard's
    return dataclasses.replace(
        plan,
        decode={
            context: [roofline.decode(footprint, machine.chip, n, context) for n in DECODE_SEQUENCES]
            for context in CONTEXTS
        },
        prefill=[roofline.prefill(alone, machine.chip, n) for n in PREFILL_TOKENS],
    )


def read_architecture(deployment: Deployment) -> tuple[Family, Any, dict[str, Any]]:
    """The family, its config, and the fields of `model.architecture` or of the checkpoint's config.json.

    Raises ConfigError.
    """
    path = deployment.model.architecture or deployment.model.checkpoint / "config.json"
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8")) if path.suffix == ".toml" else read_json(path)
        family = family_of(fields)
        return family, family.parse(fields), fields
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ModelCheckpointError) as error:
        raise ConfigError(f"{path}: {error}", param="architecture") from error


def _expert_ways(mesh: Mesh, wish: Wish, shape: ModelShape, limits: ExecutorLimits) -> dict[int, Way]:
    if not shape.experts or mesh.devices.size == 1:
        return {}
    exchange = ExpertExchange(stage_meshes(mesh)[0], wish)
    return {
        limits.shards * tokens: exchange.way(tokens, shape.experts, shape.experts_per_token)
        for tokens in limits.token_buckets
    }


def _limits(deployment: Deployment, shape: ModelShape, mesh: Mesh, platform: str) -> ExecutorLimits:
    """As the engine would be built, with the two steps that matter most: all sequences decoding, a full prefill."""
    shards, lanes = mesh.shape["data"], mesh.shape["pipeline"]
    engine = of_a_lane(of_a_shard(deployment.engine, shards), lanes)
    return ExecutorLimits(
        max_num_seqs=engine.max_num_seqs,
        max_model_len=engine.max_model_len or shape.max_position,
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


def _fixed(holdings: Holdings, beside: Sequence[Beside]) -> int:
    return holdings.weights + holdings.rows + sum(one.weights + one.sums for one in beside)


def _position(holdings: Holdings, beside: Sequence[Beside]) -> int:
    return holdings.position + sum(one.pages + one.states for one in beside)


def _compiled_if_it_fits(
    abstract: AbstractDeployment,
    holdings: Holdings,
    companions: Sequence[Companion],
    beside: Sequence[Beside],
    chip: Chip,
    limits: ExecutorLimits,
) -> tuple[dict[int, CompiledStep], dict[str, int]]:
    """The steps, with about as many pages as will be served, so that a copy of them would show, and what the largest
    program of each companion takes for the time that it runs; nothing if too large."""
    free, position = chip.memory - _fixed(holdings, beside), _position(holdings, beside)
    if free < limits.max_model_len * position:
        return {}, {}
    pages = int(POOL_SHARE * free) // (position * limits.page_size) or 1
    try:
        return abstract.compile(pages), {one.holdings().name: one.temporaries(pages) for one in companions}
    except RuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return {}, {}


def _footprint(plan: Plan, shape: ModelShape, tokens: int, shards: int) -> Footprint:
    """Of a step whose tokens so many data shards share; `tokens` names the compiled step that counts messages."""
    held = plan.holdings
    dense = held.weights - held.experts - held.gathered
    active = held.multiplied_experts * shape.experts_per_token / max(1, shape.experts)
    value_dim = shape.head_dim if shape.value_dim is None else shape.value_dim
    return Footprint(
        weight_bytes=dense,
        expert_bytes=held.experts,
        experts=max(1, shape.experts),
        experts_per_token=shape.experts_per_token,
        page_bytes=held.position / shards,
        flops=2 * (held.multiplied / shards + active),
        attention_flops=2
        * (shape.head_dim + value_dim)
        * shape.num_heads
        * shape.num_layers
        * plan.shards
        / (plan.devices * shards),
        stages=plan.mesh.get("pipeline", 1),
        link_bytes=plan.steps[tokens].sent / tokens,
    )


def _advice(plan: Plan, shape: ModelShape, chip: Chip) -> list[str]:
    """What to change where it does not fit."""
    found: list[str] = []
    if plan.positions_of_a_shard >= SHORTEST:
        found.append(f"set engine.max_model_len to {plan.positions_of_a_shard // SHORTEST * SHORTEST} or less")
    held, title, parts = plan.holdings, chip.title, plan.devices // plan.shards
    # What is beside it is taken not to shrink: an encoder does not, and a small model is small.
    beside, of_beside = plan.fixed - held.weights, plan.position - held.position
    for size in divisors(shape.num_heads, shape.num_heads):
        # KV heads are repeated where there are fewer than devices: pages shrink no further then.
        page = held.position * parts / min(size, shape.num_kv_heads) + of_beside
        weights = held.weights * parts / size
        if size > plan.devices and chip.memory * POOL_SHARE - weights - beside >= page * plan.max_model_len:
            return [*found, f"split it over more devices: mesh.tensor = {size}, on {size} {title}"]
    return [*found, f"no number of {title} that divides its {shape.num_heads} heads holds it: take a larger chip"]

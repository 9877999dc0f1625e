"""The plan of a deployment: does it fit a machine that is not at hand, how fast can it be there, and what would fit."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from jax.sharding import Mesh

from models.interface import ModelShape
from models.split_experts import ExpertExchange, Way, Wish
from serving.config import Deployment
from serving.engine.limits import ExecutorLimits
from serving.errors import ConfigError
from serving.planner import roofline
from serving.planner.abstract_engine import AbstractEngine, abstract_engine
from serving.planner.beside import Beside, fixed_bytes, position_bytes
from serving.planner.compiled import CompiledStep, Holdings
from serving.planner.roofline import Footprint, Step
from sharding.chips import Chip
from sharding.mesh import divisors, stage_meshes

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
        return fixed_bytes(self.holdings, self.beside)

    @property
    def position(self) -> int:
        """All that one position of context takes."""
        return position_bytes(self.holdings, self.beside)

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
    engine = abstract_engine(deployment, wanted)
    machine, limits, shape = engine.machine, engine.limits, engine.chat_model.shape
    progress(f"compiling for {machine}: steps of {' and '.join(map(str, limits.token_buckets))} tokens")
    compiled, temporaries = _compiled_if_it_fits(engine)
    plan = Plan(
        deployment=deployment.name,
        topology=str(machine),
        mesh={axis: size for axis, size in dataclasses.asdict(deployment.mesh).items() if size > 1},
        devices=engine.mesh.devices.size,
        memory=machine.chip.memory,
        holdings=engine.holdings,
        beside=engine.beside,
        shards=limits.shards,
        steps=compiled,
        temporaries_beside=temporaries,
        expert_ways=_expert_ways(engine.mesh, deployment.engine.expert_exchange, shape, limits),
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


def _expert_ways(mesh: Mesh, wish: Wish, shape: ModelShape, limits: ExecutorLimits) -> dict[int, Way]:
    if not shape.experts or mesh.devices.size == 1:
        return {}
    exchange = ExpertExchange(stage_meshes(mesh)[0], wish)
    return {
        limits.shards * tokens: exchange.way(tokens, shape.experts, shape.experts_per_token)
        for tokens in limits.token_buckets
    }


def _compiled_if_it_fits(engine: AbstractEngine) -> tuple[dict[int, CompiledStep], dict[str, int]]:
    """The steps, with about as many pages as will be served, so that a copy of them would show, and what the largest
    program of each companion takes for the time that it runs; nothing if too large."""
    limits, position = engine.limits, position_bytes(engine.holdings, engine.beside)
    free = engine.machine.chip.memory - fixed_bytes(engine.holdings, engine.beside)
    if free < limits.max_model_len * position:
        return {}, {}
    pages = int(POOL_SHARE * free) // (position * limits.page_size) or 1
    try:
        return engine.chat_model.compile(pages), {one.name: one.temporaries(pages) for one in engine.companions}
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

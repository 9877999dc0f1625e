"""A deployment's model on this process's devices: which types, which buckets, how many pages."""

import ctypes
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from models import checkpoint as checkpoints
from models.errors import CheckpointError as ModelCheckpointError
from models.interface import LayerForm
from models.layers import use_matmul
from models.moe import WatchLoad, use_grouped_matmul, watch_load
from models.quantization import QuantizationError
from models.sequence_parallel import fewest_tokens, split_sequences
from models.split_experts import split_experts
from models.stages import layers_of_stages
from pallas_kernels.dispatch import DenseMatmul, dense_matmul, tuned_attention_body, tuned_grouped_matmul_body
from pallas_kernels.grouped import GroupedMatmul
from pallas_kernels.tuning import load_table
from serving.config import Deployment, EngineConfig
from serving.engine.adapter_stacks import stacks_for
from serving.engine.compilation_cache import program_folder
from serving.engine.draft_model import load_draft
from serving.engine.drafter import Drafter
from serving.engine.eagle_head import load_head
from serving.engine.executor import Executor
from serving.engine.kernels import body_for, checked_matmul
from serving.engine.lanes import LaneExecutor
from serving.engine.limits import ExecutorLimits, of_a_lane, of_a_shard
from serving.engine.memory import bytes_for_pages, free_memory, lack_of_memory_named
from serving.engine.placement import bytes_on_a_device, pool_on_mesh, pool_spec
from serving.engine.reduced_precision import page_dtype, products_of, recipe_of
from serving.engine.tiers.exchange import STAGING_BYTES
from serving.engine.weights_source import RandomWeights, WeightsSource
from serving.errors import CheckpointError, ConfigError
from serving.settings.model import ExpertExchange
from serving.settings.speculation import SpeculationConfig
from sharding.chips import chip_of
from sharding.mesh import MeshError, make_mesh
from sharding.params import placement_of

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
SMALL_BUCKETS = (1, 8)
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
CACHE_BYTES_ON_CPU = 1 << 30  # a laptop has other work
DECODE_ROUNDS_ON_CPU = 4
MOST_PAGES, MOST_BYTES = (1 << 31) - 1, 1 << 60  # ids are int32; XLA ends the process where its sizes overflow
BUCKET_GROWTH = 2  # above max_num_seqs: padding at most doubles a prefill step


@lack_of_memory_named()
def load_executor(
    deployment: Deployment,
    max_model_len: int,
    progress: Progress | None = None,
    *,
    random_weights: bool = False,
    unit_vectors: bool | None = None,
    watch: WatchLoad | None = None,
) -> Executor | LaneExecutor:
    """Streams the weights in and compiles every program. `watch` is told how many tokens each expert gets,
    `unit_vectors` is the executor's.

    Raises CheckpointError or ConfigError.
    """
    report = progress or (lambda what, done, total: None)
    start_backend(deployment.engine.cpu_threads)
    on_cpu = jax.default_backend() == "cpu"
    keep_compilations(deployment.engine.compilation_cache)
    dtype = jnp.dtype(deployment.model.dtype or ("float32" if on_cpu else "bfloat16"))
    # A scan over stacked layers would copy each layer's weights out of the stack on a CPU.
    layers: LayerForm = "list" if on_cpu else "stacked"
    name = body_for(deployment.engine.kernels, jax.default_backend())
    long_step = fewest_tokens(deployment.engine.sequence_parallel_tokens, jax.default_backend())
    try:
        mesh = make_mesh(dataclasses.asdict(deployment.mesh))
        chip = chip_of(jax.devices()[0].device_kind)
        table = load_table("unknown" if chip is None else chip.name)
        matmul = checked_matmul(tuned_grouped_matmul_body(name, table))
        devices = _Devices(mesh, matmul, dense_matmul(name), deployment.engine.expert_exchange, long_step)
        products = products_of(deployment.model, chip, name, on_cpu=on_cpu, devices=mesh.devices.size)
        kept = {"layers": layers, "quantization": recipe_of(deployment.model), "products": products}
        planned, shape, _ = checkpoints.abstract(deployment.model.checkpoint, dtype, mesh=mesh, **kept)
        placement = placement_of(mesh, shape.num_heads, shape.num_kv_heads)
        placement.abstract(nnx.state(planned))  # refuses what cannot be split, before any weight is read
        adapters = stacks_for(deployment, planned, placement, dtype, matmul, name)
        folder = deployment.model.checkpoint
        source = (RandomWeights if random_weights else WeightsSource)(
            checkpoint=folder,
            dtype=dtype,
            kept=kept,
            max_length=max_model_len,
            placement=placement,
            finish=devices.join,
        )
        model, shape = source.load(folder, progress=lambda done, total: report("loading weights", done, total))
    except MeshError as error:
        raise ConfigError(f"mesh: {error}", param="mesh") from error
    except QuantizationError as error:
        raise ConfigError(f"quantization: {error}", param="quantization") from error
    except ModelCheckpointError as error:
        raise CheckpointError(str(error)) from error
    if on_cpu:
        keep_freed_memory()
    # XLA's CPU scatter takes a bfloat16 pool through float32, all of it, at every step: pages stay float32 there.
    lanes = mesh.shape["pipeline"]
    engine = of_a_lane(of_a_shard(deployment.engine, mesh.shape["data"]), lanes)
    cache_dtype = jnp.dtype(page_dtype(engine.cache_dtype, "float32" if on_cpu else dtype.name))
    # One row of a bfloat16 product is ten times slower on a CPU than eight.
    buckets = token_buckets(engine, smallest=8 if on_cpu and dtype == jnp.bfloat16 else 1)
    limits = ExecutorLimits(
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        page_size=engine.page_size,
        num_pages=1,
        token_buckets=buckets,
        shards=mesh.shape["data"],
        sequence_parallel_tokens=long_step,
        decode_rounds=decode_rounds(engine, mesh, on_cpu=on_cpu),
        guesses=most_guesses(deployment.speculation, mesh.shape),
    )
    body = tuned_attention_body(name, table)
    devices.join(model)
    if watch is not None:
        watch_load(model, watch)
    small = load_draft(deployment, shape, max_model_len, dtype, layers, mesh, report) or load_head(
        deployment, model, shape, max_model_len, dtype, mesh, report
    )
    if small is not None:
        devices.join_draft(small.model)
        limits = dataclasses.replace(limits, watched=small.watched)
    of_a_stage = dataclasses.replace(shape, num_layers=len(layers_of_stages(shape.num_layers, lanes)[0]))
    page = pool_on_mesh(body, pool_spec(of_a_stage, limits, cache_dtype, mesh), mesh)
    room = engine.cache_bytes
    if room is None and not engine.num_pages:
        free = None if on_cpu else free_memory(mesh) - staging_bytes(deployment)
        measured = (model, shape, limits, body, cache_dtype, mesh)
        room = CACHE_BYTES_ON_CPU // mesh.devices.size if free is None else bytes_for_pages(*measured, free=free)
    page_bytes = bytes_on_a_device(page) + (0 if small is None else small.page_bytes(limits, body, cache_dtype, mesh))
    limits = dataclasses.replace(limits, num_pages=page_count(engine.num_pages, room, page_bytes, limits))
    drafter = None
    if small is not None:
        drafter = Drafter(
            small.model,
            small.shape,
            limits,
            body,
            cache_dtype,
            mesh,
            progress=lambda done, total: report("compiling the draft model's programs", done, total),
            guesser=small.guesser,
        )
    executor = Executor(
        model,
        shape,
        limits,
        body,
        cache_dtype,
        progress=lambda done, total: report("compiling programs", done, total),
        mesh=mesh,
        expert_exchange=engine.expert_exchange,
        adapters=adapters,
        drafter=drafter,
        unit_vectors=unit_vectors,
    )
    executor.memory.source = source
    if lanes == 1:
        return executor
    return LaneExecutor([executor, *(executor.beside() for _ in range(1, lanes))], executor.memory)


@dataclasses.dataclass(frozen=True, slots=True)
class _Devices:
    """What a model is told of the devices that it runs on, once, at load."""

    mesh: Mesh
    grouped: GroupedMatmul
    dense: DenseMatmul | None
    exchange: ExpertExchange
    long_step: int  # tokens

    def join(self, model: Any) -> None:
        use_grouped_matmul(model, self.grouped)
        self.join_draft(model)
        split_experts(model, self.mesh, self.exchange)
        split_sequences(model, self.mesh, self.long_step)

    def join_draft(self, model: Any) -> None:
        """Of one that guesses for another."""
        if self.dense is not None and self.mesh.devices.size == 1:
            use_matmul(model, self.dense)


def start_backend(cpu_threads: int | None) -> None:
    """Creates JAX's devices; the first call in a process decides how many threads a CPU device has.

    By default one core of more than two is left to the host's side of a step, the API process and its clients. Of two
    cores the device has both: a single user loses a tenth, several gain a tenth to a quarter.
    """
    if not hasattr(os, "sched_setaffinity"):  # not Linux: XLA takes what cores there are
        jax.devices()
        return
    cores = sorted(os.sched_getaffinity(0))
    default = len(cores) - 1 if len(cores) > 2 else len(cores)
    os.sched_setaffinity(0, cores[: cpu_threads or default])  # XLA makes as many threads as it sees cores
    try:
        jax.devices()
    finally:
        os.sched_setaffinity(0, cores)


def keep_freed_memory() -> None:
    """Lets the C library keep what XLA frees, up to 2 GiB, for the next step's temporaries.

    By default a block of more than 128 KiB goes back to the kernel when it is freed, and every step faults its pages in
    again: a quarter of the time of a step of one row on a CPU. Only glibc has these settings.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_TRIM_THRESHOLD, 2**31 - 1)


def keep_compilations(directory: Path | None) -> None:
    """Turns on JAX's persistent compilation cache, for every program however small. `directory` is as in
    `program_folder`. Raises ConfigError."""
    folder = program_folder(directory, writes=jax.process_index() == 0)
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def token_buckets(engine: EngineConfig, smallest: int) -> tuple[int, ...]:
    """The step sizes to compile: given ones, or a few small ones, max_num_seqs, and doublings up to the budget."""
    budget = engine.max_num_batched_tokens
    sizes = set(engine.token_buckets)
    if not sizes:
        sizes = {size for size in (*SMALL_BUCKETS, engine.max_num_seqs) if size <= engine.max_num_seqs}
        size = engine.max_num_seqs * BUCKET_GROWTH
        while size < budget:
            sizes.add(size)
            size *= BUCKET_GROWTH
    return tuple(sorted({max(size, smallest) for size in sizes if max(size, smallest) <= budget} | {budget}))


def decode_rounds(engine: EngineConfig, mesh: Mesh, *, on_cpu: bool) -> int:
    """How many tokens the device draws of each sequence by itself. On a CPU the host's part of a step, and each
    message on its way to a client, take time on the cores that the device computes with. Never several where the time
    between two tokens is promised.

    Raises ConfigError where the mesh needs the host between two tokens.
    """
    given = engine.decode_rounds
    alone = mesh.shape["pipeline"] == mesh.shape["data"] == 1
    if given is not None and given > 1 and not alone:
        raise ConfigError(
            f"engine.decode_rounds is {given}, but with data shards or a pipeline the host joins or hands on every "
            "step: it must be 1 there",
            param="decode_rounds",
        )
    steady = engine.target_inter_token_ms is not None
    return given or (DECODE_ROUNDS_ON_CPU if on_cpu and alone and not steady else 1)


def most_guesses(speculation: SpeculationConfig, sizes: Mapping[str, int]) -> int:
    """Guesses that a step may verify of one sequence, on a mesh of these sizes. Raises ConfigError where it has no
    programs for them."""
    if speculation.kind == "off":
        return 0
    for axis in ("data", "pipeline"):
        if sizes[axis] > 1:
            raise ConfigError(
                f'speculation.kind is "{speculation.kind}", which does not work with mesh.{axis} above 1: set it to '
                '"off", or take a mesh of tensor and expert alone',
                param="kind",
            )
    return speculation.depth


def staging_bytes(deployment: Deployment) -> int:
    """Of a device, for pages on their way to the host's memory and back."""
    return 0 if deployment.prefix_cache.host_bytes is None else STAGING_BYTES


def page_count(given: int | None, room: int | None, page_bytes: int, limits: ExecutorLimits) -> int:
    """The number of pages given, or as many as `room` bytes of a device hold. page_bytes are those of one device.

    Raises ConfigError where one full sequence does not fit.
    """
    pages = given or (room or 0) // page_bytes
    if pages < limits.table_width:
        raise ConfigError(
            f"{pages} pages of {limits.page_size} tokens cannot hold one sequence of {limits.max_model_len}, which "
            f"needs {limits.table_width} ({limits.table_width * page_bytes} bytes): raise engine.cache_bytes or "
            "engine.num_pages, or lower engine.max_model_len",
            param="num_pages" if given else "cache_bytes",
        )
    if pages > MOST_PAGES or pages * page_bytes > MOST_BYTES:
        raise ConfigError(
            f"{pages} pages of {page_bytes} bytes are more than can be: at most {MOST_PAGES} pages, and {MOST_BYTES} "
            "bytes of a device",
            param="num_pages" if given else "cache_bytes",
        )
    return pages

"""The engine's own programs on a Llama of 8B with random weights: decode steps, then `weft bench offline`'s measure."""

import asyncio
import dataclasses
import random
import statistics
import time
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from models.interface import ModelShape
from models.registry import family_of
from pallas_kernels.dispatch import attention_body
from scripts.gpu_bench.batches import filled
from scripts.gpu_bench.report import Recorder
from scripts.gpu_bench.scale import ARCHITECTURE, Scale
from serving.bench import offline
from serving.bench.workload import Workload, items
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.local import start_local_engine
from serving.engine.plan import Admission, Range, StepPlan
from serving.engine.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
STEPS = 20  # queued behind one another
BUDGET = 2048  # tokens of the largest step


def run(scale: Scale, out: Recorder) -> None:
    fields = {**tomllib.loads(ARCHITECTURE.read_text(encoding="utf-8")), **scale.model}
    family = family_of(fields)
    config = family.parse(fields)
    on_cpu = scale.body == "reference"
    model = family.build(config, jnp.dtype(scale.dtype), seed=None, layers="list" if on_cpu else "stacked")
    nnx.update(model, jax.tree.map(filled, nnx.state(model)))
    weights = jax.tree.leaves(nnx.state(model))
    numbers = sum(leaf.size for leaf in weights) - fields["vocab_size"] * fields["hidden_size"]
    shape = family.shape(config)
    begin = time.perf_counter()
    executor = Executor(model, shape, _limits(scale), attention_body(scale.body), jnp.dtype(scale.dtype))
    out.note(f"{executor.programs_compiled} programs compiled in {time.perf_counter() - begin:.1f} s")
    for batch in scale.step_batches:
        _steps(scale, out, executor, shape, batch, numbers)
    _offline(scale, out, executor, numbers)


def _limits(scale: Scale) -> ExecutorLimits:
    longest = max(scale.step_context, scale.prompt_len + scale.output_len) + scale.page_size
    sequences = max(scale.step_batches)
    pages = sequences * -(-longest // scale.page_size)
    budget = BUDGET if scale.body == "gpu" else scale.prompt_len * 2
    return ExecutorLimits(
        max_num_seqs=sequences,
        max_model_len=longest,
        page_size=scale.page_size,
        num_pages=pages,
        token_buckets=tuple(sorted({*scale.step_batches, budget})),
    )


def _steps(scale: Scale, out: Recorder, executor: Executor, shape: ModelShape, batch: int, numbers: int) -> None:
    """`numbers`: of the weights that a step reads."""
    width, context = executor.limits.table_width, scale.step_context
    ranges = tuple(
        Range(
            row=row,
            start=context - 1,
            length=1,
            token_ids=(),  # the row's last token, as while serving
            pages=tuple(range(row * width, (row + 1) * width)),
            samples=True,
            sampling=GREEDY,
            num_output=0,
        )
        for row in range(batch)
    )
    admissions = tuple(
        Admission(row=row, sampling=GREEDY, prompt_token_ids=(1,), output_token_ids=()) for row in range(batch)
    )
    plan = StepPlan(step=0, admissions=admissions, ranges=ranges, num_decode=batch)
    executor.dispatch(plan).collect()
    plan = dataclasses.replace(plan, admissions=())
    taken = []
    for _ in range(scale.runs):
        begin = time.perf_counter()
        pending = [executor.dispatch(plan) for _ in range(STEPS if scale.body == "gpu" else 1)]
        pending[-1].collect()
        taken.append((time.perf_counter() - begin) / len(pending))
    itemsize = jnp.dtype(scale.dtype).itemsize
    position = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * itemsize
    attended = 4.0 * shape.num_layers * shape.num_heads * shape.head_dim * context
    out.figure(
        f"decode step of {batch} at {context}",
        statistics.median(taken),
        bytes=numbers * itemsize + batch * context * position,
        flops=batch * (2.0 * numbers + attended),
    )


def _offline(scale: Scale, out: Recorder, executor: Executor, numbers: int) -> None:
    deployment = Deployment(
        name="bench", model=ModelConfig(checkpoint=Path("random")), engine=EngineConfig(prefix_caching=False)
    )
    last_token = min(999, executor.vocab_size - 1)
    workload = Workload(
        num_prompts=scale.prompts, input_len=scale.prompt_len, output_len=scale.output_len, last_token_id=last_token
    )
    wanted = items(workload, random.Random(0), random.Random(1))
    result = asyncio.run(_measured(deployment, executor, wanted))
    out.figure(
        f"offline: {scale.prompts} prompts of {scale.prompt_len}, {scale.output_len} tokens each (all of it)",
        result.seconds,
        bytes=float(result.steps * numbers * jnp.dtype(scale.dtype).itemsize),
        flops=2.0 * numbers * (result.prompt_tokens + result.output_tokens),
    )
    out.note(
        f"offline: {result.output_tokens_per_second:,.0f} new tokens/s, {result.total_tokens_per_second:,.0f} in all; "
        f"{result.steps} steps of {result.milliseconds_per_step:.2f} ms, host {result.host_share:.1%}; its bytes above "
        "are those of the weights alone"
    )


async def _measured(deployment: Deployment, executor: Executor, wanted: list) -> offline.OfflineResult:
    engine = start_local_engine(deployment, executor, startup_seconds=0.0)
    try:
        return await offline.measure(engine, wanted, lambda _: None)
    finally:
        await engine.close()

"""Every program of a deployment, compiled before it is ready.

`Compiled` objects are called, not jitted functions: an unforeseen shape raises, so that nothing can
recompile while serving. With the persistent compilation cache a second start reads them from disk.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding

from serving.engine import steps
from serving.engine.batch import SEQUENCE_FIELDS, BatchLayout
from serving.engine.hidden_pages import AnyPool
from serving.engine.plan import Admission
from serving.engine.request import SamplingParams
from serving.engine.sampler_rows import SamplerRows, admission_arrays, admit, words_of
from sharding.mesh import everywhere
from sharding.rules import spec_of

Progress = Callable[[int, int], None]  # programs compiled, programs in all
ProgramKey = tuple[str, object]  # its name and its bucket
COMPILED_AT_ONCE = 4


@dataclass(frozen=True)
class Programs:
    """The compiled programs, by the bucket that each is for."""

    forward: Mapping[BatchLayout, jax.stages.Compiled]
    score_prompt: Mapping[int, jax.stages.Compiled]  # by T
    sample: Mapping[int, jax.stages.Compiled]  # by S
    sample_masked: Mapping[int, jax.stages.Compiled]  # by S
    score: Mapping[int, jax.stages.Compiled]  # by S
    decode_rounds: Mapping[BatchLayout, jax.stages.Compiled]
    admit: jax.stages.Compiled

    @property
    def count(self) -> int:
        steps = len(self.forward) + len(self.decode_rounds) + len(self.score_prompt)
        return steps + 2 * len(self.sample) + len(self.score) + 1


def compile_programs(
    program: steps.ModelProgram,
    layouts: list[BatchLayout],
    weights: tuple[Array, ...],
    pool: AnyPool,
    rows: SamplerRows,
    progress: Progress | None = None,
    entering: Mapping[BatchLayout, jax.ShapeDtypeStruct] | None = None,
    rounds: int = 1,
) -> Programs:
    """Compiles all programs of these buckets for the program's mesh. Nothing is run.

    Weights, pool and rows may be jax.ShapeDtypeStructs with shardings, and the mesh one of devices that are not there.
    What comes out lies as what goes in, so that a donated array is overwritten in place and no program sees another
    layout than the one that it was compiled for.
    """
    compiled = compile_lowered(lower_programs(program, layouts, weights, pool, rows, entering, rounds), progress)

    def of(name: str) -> dict:
        return {key: program for (kind, key), program in compiled.items() if kind == name}

    return Programs(
        forward=of("forward"),
        score_prompt=of("score_prompt"),
        sample=of("sample"),
        sample_masked=of("sample_masked"),
        score=of("score"),
        decode_rounds=of("decode_rounds"),
        admit=compiled["admit", 0],
    )


def lower_programs(
    program: steps.ModelProgram,
    layouts: list[BatchLayout],
    weights: tuple[Array, ...],
    pool: AnyPool,
    rows: SamplerRows,
    entering: Mapping[BatchLayout, jax.ShapeDtypeStruct] | None = None,
    rounds: int = 1,
) -> Iterator[tuple[ProgramKey, jax.stages.Lowered]]:
    """Every program, one after another as it is lowered.

    entering: what the last stage of a pipeline takes from those before it. rounds: see `steps.decode_rounds`.
    """
    whole = everywhere(program.mesh)
    split = NamedSharding(program.mesh, spec_of(("tokens", "vocab")))
    tokens = NamedSharding(program.mesh, spec_of(("tokens", None)))
    vocab_size = program.vocab_size

    def integers(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=whole)

    sampled: set[int] = set()  # numbers of sequences, which buckets share
    for layout in layouts:
        if rounds > 1 and layout in layouts_of_decode(layouts):
            decode = functools.partial(steps.decode_rounds, program, layout, rounds)
            yield ("decode_rounds", layout), lower_decode_rounds(decode, program, layout, weights, pool, rows)
        handed = () if entering is None else (entering[layout],)
        body = functools.partial(steps.forward, program, layout)
        forward = lower_forward(body, program, layout, weights, pool, rows, *handed)
        yield ("forward", layout), forward
        *_, logits, _, hidden = forward.out_info
        hidden = jax.ShapeDtypeStruct(hidden.shape, hidden.dtype, sharding=tokens)
        score_prompt = jax.jit(functools.partial(steps.score_prompt, program), out_shardings=whole)
        all_tokens = integers(layout.all_tokens)
        yield ("score_prompt", layout.all_tokens), score_prompt.lower(weights, hidden, all_tokens)
        size = layout.all_sequences
        logits = jax.ShapeDtypeStruct(logits.shape, logits.dtype, sharding=split)
        if size not in sampled:
            sampled.add(size)
            sample = jax.jit(functools.partial(steps.sample, program), donate_argnums=0, out_shardings=whole)
            sequences = integers(len(SEQUENCE_FIELDS), size)
            yield ("sample", size), sample.lower(rows, logits, sequences)
            masks = jax.ShapeDtypeStruct((size, words_of(vocab_size)), jnp.uint32, sharding=whole)
            masked = jax.jit(functools.partial(steps.sample_masked, program), donate_argnums=0, out_shardings=whole)
            yield ("sample_masked", size), masked.lower(rows, logits, sequences, masks)
            score = jax.jit(functools.partial(steps.score, program), out_shardings=whole)
            yield ("score", size), score.lower(logits, integers(size))
    blank = Admission(row=0, sampling=SamplingParams(), prompt_token_ids=(), output_token_ids=())
    setup = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), admission_arrays(blank, vocab_size)
    )
    yield ("admit", 0), jax.jit(admit, donate_argnums=0, out_shardings=whole).lower(rows, setup)


def layouts_of_decode(layouts: Sequence[BatchLayout]) -> list[BatchLayout]:
    """Of `layouts`, in ascending order, those that a step with one token of each sequence may have."""
    before = [0, *(layout.sequences for layout in layouts)]
    return [layout for layout, fewer in zip(layouts, before, strict=False) if layout.sequences > fewer]


def lower_forward(
    body: Callable[..., Any],
    program: steps.ModelProgram,
    layout: BatchLayout,
    weights: Any,
    pool: AnyPool,
    rows: SamplerRows,
    *handed: jax.ShapeDtypeStruct,
) -> jax.stages.Lowered:
    """`steps.forward`, or what has its arguments and results, for one bucket."""
    whole = everywhere(program.mesh)
    split, tokens = (NamedSharding(program.mesh, spec_of(names)) for names in (("tokens", "vocab"), ("tokens", None)))
    step = jax.jit(body, donate_argnums=(1, 2), out_shardings=(_lies(pool), whole, whole, split, whole, tokens))
    vector = jax.ShapeDtypeStruct((layout.size,), jnp.int32, sharding=whole)
    return step.lower(weights, pool, rows.last_token, vector, *handed)


def lower_decode_rounds(
    body: Callable[..., Any],
    program: steps.ModelProgram,
    layout: BatchLayout,
    weights: Any,
    pool: AnyPool,
    rows: SamplerRows,
) -> jax.stages.Lowered:
    """`steps.decode_rounds`, or what has its arguments and results, for one bucket."""
    whole = everywhere(program.mesh)
    decode = jax.jit(body, donate_argnums=(1, 2), out_shardings=(_lies(pool), whole, whole))
    return decode.lower(weights, pool, rows, jax.ShapeDtypeStruct((layout.size,), jnp.int32, sharding=whole))


def _lies(pool: AnyPool) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, pool)


def lower_stage(
    program: steps.ModelProgram,
    layout: BatchLayout,
    weights: tuple[Array, ...],
    pool: AnyPool,
    source: jax.ShapeDtypeStruct,
) -> jax.stages.Lowered:
    """The program of a pipeline's stage that is not the last one (see `steps.pass_on`)."""
    tokens = NamedSharding(program.mesh, spec_of(("tokens", None)))
    step = jax.jit(
        functools.partial(steps.pass_on, program, layout),
        donate_argnums=1,
        out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, pool), tokens),
    )
    vector = jax.ShapeDtypeStruct((layout.size,), jnp.int32, sharding=everywhere(program.mesh))
    return step.lower(weights, pool, source, vector)


def compile_lowered(
    lowered: Iterable[tuple[ProgramKey, jax.stages.Lowered]], progress: Progress | None
) -> dict[ProgramKey, jax.stages.Compiled]:
    """Side by side, and beside what `lowered` does for the next one: XLA releases the interpreter's lock while it
    compiles."""
    compiled: dict[ProgramKey, jax.stages.Compiled] = {}
    with ThreadPoolExecutor(COMPILED_AT_ONCE) as threads:
        running = {key: threads.submit(low.compile) for key, low in lowered}
        for key, future in running.items():
            compiled[key] = future.result()
            if progress is not None:
                progress(len(compiled), len(running))
    return compiled

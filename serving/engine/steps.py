"""The programs of a step, as pure functions to be jitted by the executor.

    forward   tokens of the batch through the model and its pages, then logits and the greedy token of each sequence
    sample    instead of the greedy token, where some sequence asks for more
    sample_masked  the same under grammars: dispatched once the host, beside `forward`, has computed their masks
    decode_rounds  forward and the draw several times over, each with the tokens of the one before
    score     log-probabilities of the tokens drawn
    score_prompt   log-probabilities of the prompt's own tokens

One forward program a token bucket; the others are small. A batch that is all greedy runs `forward` and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding

from models.interface import Attend
from pallas_kernels.dispatch import PagedAttention
from pallas_kernels.ragged import AttentionOptions, Pool, RaggedBatch
from serving.engine import sampling
from serving.engine.batch import (
    BANS_STOPS,
    FEEDS_BACK,
    FLOATS,
    SAMPLES,
    SEQUENCE_FIELDS,
    STATEFUL,
    BatchLayout,
    slices_of,
)
from serving.engine.hidden_pages import AnyPool, WatchedPool, written
from serving.engine.request import MAX_LOGPROBS
from serving.engine.sampler_rows import SamplerRows
from sharding.mesh import everywhere
from sharding.rules import spec_of

SCORED_AT_ONCE = 64  # prompt positions whose logits are held together: [64, V] and not [T, V]


@dataclass(frozen=True)
class ModelProgram:
    """A model taken apart for jit: its structure is static, its weights are the program's first argument."""

    graph: Any
    tree: Any
    attention: PagedAttention
    vocab_size: int
    mesh: Mesh
    first_layer: int = 0  # of a pipeline's stage
    watched: tuple[int, ...] = ()  # layers whose entering states are kept with the pages (see `hidden_pages.py`)
    attach: Callable[[Any], None] | None = None  # puts adapters beside the model's weights (see `adapted_programs.py`)

    def model(self, weights: tuple[Array, ...]) -> Any:
        model = nnx.merge(self.graph, jax.tree.unflatten(self.tree, weights))
        if self.attach is not None:
            self.attach(model)
        return model

    def without_padding(self, logits: Array) -> Array:
        """Logits [N, V or more], split over the mesh as they are, with -inf for what is no token."""
        if logits.shape[1] == self.vocab_size:
            return logits
        return jnp.where(lax.broadcasted_iota(jnp.int32, logits.shape, 1) < self.vocab_size, logits, -jnp.inf)

    def split_tokens(self, values: Array) -> Array:
        """[T, ...] or [S, ...] of all data shards, each part on the devices of its shard."""
        if self.mesh.shape["data"] == 1:
            return values
        return lax.with_sharding_constraint(values, NamedSharding(self.mesh, spec_of(("tokens",))))

    def rows_of_shards(self, values: Array, rows: Array) -> Array:
        """values [T, D] at rows [S], which count within their shard."""
        if self.mesh.shape["data"] == 1:
            return values[rows]
        tokens = spec_of(("tokens",))
        return jax.shard_map(
            lambda values, rows: values[rows],
            mesh=self.mesh,
            in_specs=(tokens, tokens),
            out_specs=tokens,
            check_vma=False,
        )(values, rows)

    def gathered(self, logits: Array) -> Array:
        """[N, V] whole on every device, of logits [N, V or more] that are split."""
        return lax.with_sharding_constraint(logits, everywhere(self.mesh))[:, : self.vocab_size]


def unpack(vector: Array, layout: BatchLayout) -> dict[str, Array]:
    """The named arrays of a packed batch (see `batch.BatchLayout`), each with the shards as a first dimension."""
    parts = vector.reshape(layout.shards, -1)
    return {
        name: parts[:, begin:end].reshape(layout.shards, *shape)
        for name, (begin, end, shape) in slices_of(layout).items()
    }


def forward(
    program: ModelProgram,
    layout: BatchLayout,
    weights: tuple[Array, ...],
    pool: AnyPool,
    last_token: Array,  # [R]: the rows' own, and all that a greedy batch needs of them
    vector: Array,
    entering: Array | None = None,  # [T, D], of the last stage of a pipeline: what the stage before it hands on
) -> tuple[AnyPool, Array, Array, Array, Array, Array]:
    """Returns (pool, last_token, greedy tokens [S], logits [S, V] float32, the block of sequences, hidden [T, D]).

    The logits stay split over the mesh, and may be padded: the greedy token needs each device's best alone, and only a
    program that needs more gathers them. T and S are those of all data shards.
    """
    fields = unpack(vector, layout)
    model = program.model(weights)
    if entering is None:
        entering = program.split_tokens(batch_token_ids(fields, layout, last_token))
    hidden, pool = walked(program, model, layout, fields, pool, entering)
    return pool, *_drawn(program, model, fields, last_token, hidden), hidden


def decode_rounds(
    program: ModelProgram,
    layout: BatchLayout,
    rounds: int,
    weights: tuple[Array, ...],
    pool: AnyPool,
    rows: SamplerRows,
    vector: Array,
) -> tuple[AnyPool, SamplerRows, Array]:
    """Returns (pool, rows, tokens [rounds, S]) of a batch in which each sequence decodes, without memory of its draws.

    A batch that is all greedy draws as `forward` does; which of the two, the device looks up once.
    """
    random = jnp.any(sampling.is_random(sample_params(block_of_sequences(unpack(vector, layout)))))

    def one(state: tuple[AnyPool, SamplerRows, Array], _: None) -> tuple[tuple[AnyPool, SamplerRows, Array], Array]:
        pool, rows, vector = state
        pool, last_token, tokens, logits, sequences, _hidden = forward(
            program, layout, weights, pool, rows.last_token, vector
        )
        rows = replace(rows, last_token=last_token)
        rows, tokens = lax.cond(random, lambda: sample(program, rows, logits, sequences), lambda: (rows, tokens))
        return (pool, rows, _one_later(vector, layout)), tokens

    (pool, rows, _), tokens = lax.scan(one, (pool, rows, vector), length=rounds)
    return pool, rows, tokens


def _one_later(vector: Array, layout: BatchLayout) -> Array:
    """The batch in which each sequence decodes one position further, from the token just drawn."""
    parts = vector.reshape(layout.shards, -1)
    places = slices_of(layout)
    begin, end, shape = places["sequences"]
    block = parts[:, begin:end].reshape(layout.shards, *shape)
    real = jnp.arange(shape[1]) < parts[:, places["counts"][0] + 1, None]  # num_seqs
    block = block.at[:, SEQUENCE_FIELDS.index("kv_len")].add(real.astype(jnp.int32))
    flags = SEQUENCE_FIELDS.index("flags")
    block = block.at[:, flags].set(jnp.where(real, block[:, flags] | FEEDS_BACK, block[:, flags]))
    parts = parts.at[:, begin:end].set(block.reshape(layout.shards, -1))
    begin, end, _ = places["positions"]
    return parts.at[:, begin:end].add(1).reshape(-1)


def pass_on(
    program: ModelProgram,
    layout: BatchLayout,
    weights: tuple[Array, ...],
    pool: AnyPool,
    source: Array,  # the rows' last tokens [R] for the first stage, hidden states [T, D] for another
    vector: Array,
) -> tuple[AnyPool, Array]:
    """A stage of a pipeline that is not the last: (pool, hidden [T, D])."""
    fields = unpack(vector, layout)
    model = program.model(weights)
    entering = program.split_tokens(batch_token_ids(fields, layout, source)) if model.begins else source
    hidden, pool = walked(program, model, layout, fields, pool, entering)
    return pool, hidden


def walked(
    program: ModelProgram, model: Any, layout: BatchLayout, fields: dict[str, Array], pool: AnyPool, entering: Any
) -> tuple[Array, AnyPool]:
    """(hidden [T, D], pool) after the layers that the program has."""
    positions = program.split_tokens(fields["positions"].reshape(-1))
    batch = ragged_batch(fields, layout)
    attend = attend_to(program.attention, batch, program.first_layer)
    if not isinstance(pool, WatchedPool):
        return model(entering, positions, pool, attend)
    hidden, pages, states = model.with_states(entering, positions, pool.pages, attend, program.watched)
    # Or XLA would split every layer's hidden states as their pages are, and gather them before each product.
    states = lax.with_sharding_constraint(states, everywhere(program.mesh))
    return hidden, WatchedPool(pages, written(pool.states, states, batch))


def batch_token_ids(fields: dict[str, Array], layout: BatchLayout, last_token: Array) -> Array:
    """[T] the batch's tokens; of a sequence that feeds back, the last one of its row."""
    sequences = dict(zip(SEQUENCE_FIELDS, block_of_sequences(fields), strict=True))
    owner = jnp.minimum(fields["sequence_ids"], layout.sequences - 1)
    owner = (owner + layout.sequences * jnp.arange(layout.shards, dtype=jnp.int32)[:, None]).reshape(-1)
    feeds_back = sequences["flags"] & FEEDS_BACK != 0
    return jnp.where(feeds_back[owner], last_token[sequences["row"]][owner], fields["token_ids"].reshape(-1))


def ragged_batch(fields: dict[str, Array], layout: BatchLayout) -> RaggedBatch:
    """As attention takes it: the parts of the shards one after another (see `placement.attention_on_mesh`)."""
    alone = layout.shards == 1
    return RaggedBatch(
        page_table=fields["page_table"].reshape(-1, layout.table_width),
        kv_lens=block_of_sequences(fields)[SEQUENCE_FIELDS.index("kv_len")],
        cu_q_lens=fields["cu_q_lens"].reshape(-1),
        num_decode=fields["counts"][0, 0] if alone else fields["counts"][:, 0],
        num_seqs=fields["counts"][0, 1] if alone else fields["counts"][:, 1],
        positions=fields["positions"].reshape(-1),
        sequence_ids=fields["sequence_ids"].reshape(-1),
    )


def block_of_sequences(fields: dict[str, Array]) -> Array:
    """The block of sequences [fields, S] of all shards."""
    return jnp.moveaxis(fields["sequences"], 0, 1).reshape(len(SEQUENCE_FIELDS), -1)


def _drawn(
    program: ModelProgram, model: Any, fields: dict[str, Array], last_token: Array, hidden: Array
) -> tuple[Array, Array, Array, Array]:
    """(last_token, greedy tokens [S], logits [S, V], the block of sequences) of hidden [T, D]."""
    sequences = block_of_sequences(fields)
    at_last = program.rows_of_shards(hidden, sequences[SEQUENCE_FIELDS.index("last")])
    logits = program.without_padding(model.logits(at_last))
    last_token, tokens = sampling.greedy(last_token, logits, sample_params(sequences))
    return last_token, tokens, logits, sequences


def attend_to(attention: PagedAttention, batch: RaggedBatch, first_layer: int = 0) -> Attend:
    """`first_layer` is the one whose pages come first in the pool."""

    def attend(
        cache: Pool,
        layer: Array | int,
        q: Array,
        k: Array,
        v: Array | None,
        options: AttentionOptions,
        *,
        sinks: Array | None = None,
        window: Array | int | None = None,
    ) -> tuple[Pool, Array]:
        out, cache = attention(q, k, v, cache, layer - first_layer, batch, options, sinks, window)
        return cache, out

    return attend


def sample_params(sequences: Array) -> sampling.SampleParams:
    """The sampler's view of the block of sequences [fields, S] int32 (see `batch.SEQUENCE_FIELDS`)."""
    fields = dict(zip(SEQUENCE_FIELDS, sequences, strict=True))
    flags = fields["flags"]
    return sampling.SampleParams(
        row=fields["row"],
        position=fields["kv_len"],  # the token drawn goes to the first position not yet written
        needs_sample=flags & SAMPLES != 0,
        stateful=flags & STATEFUL != 0,
        ban_stops=flags & BANS_STOPS != 0,
        top_k=fields["top_k"],
        seed_hi=lax.bitcast_convert_type(fields["seed_hi"], jnp.uint32),
        seed_lo=lax.bitcast_convert_type(fields["seed_lo"], jnp.uint32),
        **{name: lax.bitcast_convert_type(fields[name], jnp.float32) for name in FLOATS},
    )


def sample(program: ModelProgram, rows: SamplerRows, logits: Array, sequences: Array) -> tuple[SamplerRows, Array]:
    """Returns (rows, tokens [S]); overrides what `forward` left as the rows' last tokens."""
    return sampling.sample(rows, program.gathered(logits), sample_params(sequences))


def sample_masked(
    program: ModelProgram, rows: SamplerRows, logits: Array, sequences: Array, masks: Array
) -> tuple[SamplerRows, Array]:
    """`sample`, of the tokens whose bits are set in masks [S, W] uint32 (see `sampler_rows` for their order)."""
    return sampling.sample(rows, program.gathered(logits), sample_params(sequences), masks)


def score(program: ModelProgram, logits: Array, tokens: Array) -> tuple[Array, Array, Array, Array]:
    """(logprob [S], rank [S], top ids [S, k], top logprobs [S, k]) of tokens [S] under logits [S, V]."""
    return sampling.top_logprobs(program.gathered(logits), tokens, MAX_LOGPROBS)


def score_prompt(
    program: ModelProgram, weights: tuple[Array, ...], hidden: Array, next_ids: Array
) -> tuple[Array, Array, Array, Array]:
    """`score` of next_ids [T] under the logits of hidden [T, D], a slice of positions at a time."""
    model = program.model(weights)
    if program.mesh.shape["data"] > 1:
        hidden = lax.with_sharding_constraint(hidden, everywhere(program.mesh))
    count = min(SCORED_AT_ONCE, hidden.shape[0])
    spare = -hidden.shape[0] % count
    parts = jnp.pad(hidden, ((0, spare), (0, 0))).reshape(-1, count, hidden.shape[1])
    ids = jnp.pad(next_ids, (0, spare)).reshape(-1, count)
    scored = lax.map(lambda part: score(program, model.logits(part[0]), part[1]), (parts, ids))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: hidden.shape[0]], scored)

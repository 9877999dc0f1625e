"""The programs of a step, as pure functions to be jitted by the executor.

    forward   tokens of the batch through the model and its pages, then logits and the greedy token of each sequence
    sample    instead of the greedy token, where some sequence asks for more
    sample_masked  the same under grammars: dispatched once the host, beside `forward`, has computed their masks
    score     log-probabilities of the tokens drawn
    score_prompt   log-probabilities of the prompt's own tokens

One forward program a token bucket; the others are small. A batch that is all greedy runs `forward` and nothing else.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh

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
from serving.engine.request import MAX_LOGPROBS
from serving.engine.sampler_rows import SamplerRows
from sharding.mesh import everywhere

SCORED_AT_ONCE = 64  # prompt positions whose logits are held together: [64, V] and not [T, V]


@dataclass(frozen=True)
class ModelProgram:
    """A model taken apart for jit: its structure is static, its weights are the program's first argument."""

    graph: Any
    tree: Any
    attention: PagedAttention
    vocab_size: int
    mesh: Mesh

    def model(self, weights: tuple[Array, ...]) -> Any:
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, weights))

    def without_padding(self, logits: Array) -> Array:
        """Logits [N, V or more], split over the mesh as they are, with -inf for what is no token."""
        if logits.shape[1] == self.vocab_size:
            return logits
        return jnp.where(lax.broadcasted_iota(jnp.int32, logits.shape, 1) < self.vocab_size, logits, -jnp.inf)

    def gathered(self, logits: Array) -> Array:
        """[N, V] whole on every device, of logits [N, V or more] that are split."""
        return lax.with_sharding_constraint(logits, everywhere(self.mesh))[:, : self.vocab_size]


def unpack(vector: Array, layout: BatchLayout) -> dict[str, Array]:
    """The named arrays of a packed batch (see `batch.BatchLayout`)."""
    return {name: vector[begin:end].reshape(shape) for name, (begin, end, shape) in slices_of(layout).items()}


def forward(
    program: ModelProgram,
    layout: BatchLayout,
    weights: tuple[Array, ...],
    pool: Pool,
    last_token: Array,  # [R]: the rows' own, and all that a greedy batch needs of them
    vector: Array,
) -> tuple[Pool, Array, Array, Array, Array, Array]:
    """Returns (pool, last_token, greedy tokens [S], logits [S, V] float32, the block of sequences, hidden [T, D]).

    The logits stay split over the mesh, and may be padded: the greedy token needs each device's best alone, and only a
    program that needs more gathers them.
    """
    fields = unpack(vector, layout)
    sequences = dict(zip(SEQUENCE_FIELDS, fields["sequences"], strict=True))
    batch = RaggedBatch(
        page_table=fields["page_table"],
        kv_lens=sequences["kv_len"],
        cu_q_lens=fields["cu_q_lens"],
        num_decode=fields["counts"][0],
        num_seqs=fields["counts"][1],
        positions=fields["positions"],
        sequence_ids=fields["sequence_ids"],
    )
    feeds_back = sequences["flags"] & FEEDS_BACK != 0
    owner = jnp.minimum(fields["sequence_ids"], layout.sequences - 1)
    fed_back = last_token[sequences["row"]][owner]
    token_ids = jnp.where(feeds_back[owner], fed_back, fields["token_ids"])
    model = program.model(weights)
    hidden, pool = model(token_ids, fields["positions"], pool, _attend(program.attention, batch))
    logits = program.without_padding(model.logits(hidden[sequences["last"]]))
    last_token, tokens = sampling.greedy(last_token, logits, sample_params(fields["sequences"]))
    return pool, last_token, tokens, logits, fields["sequences"], hidden


def _attend(attention: PagedAttention, batch: RaggedBatch) -> Attend:
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
        out, cache = attention(q, k, v, cache, layer, batch, options, sinks, window)
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


def score(program: ModelProgram, logits: Array, tokens: Array) -> tuple[Array, Array, Array, Array]:
    """(logprob [S], rank [S], top ids [S, k], top logprobs [S, k]) of tokens [S] under logits [S, V]."""
    return sampling.top_logprobs(program.gathered(logits), tokens, MAX_LOGPROBS)


def score_prompt(
    program: ModelProgram, weights: tuple[Array, ...], hidden: Array, next_ids: Array
) -> tuple[Array, Array, Array, Array]:
    """`score` of next_ids [T] under the logits of hidden [T, D], a slice of positions at a time."""
    model = program.model(weights)
    count = min(SCORED_AT_ONCE, hidden.shape[0])
    spare = -hidden.shape[0] % count
    parts = jnp.pad(hidden, ((0, spare), (0, 0))).reshape(-1, count, hidden.shape[1])
    ids = jnp.pad(next_ids, (0, spare)).reshape(-1, count)
    scored = lax.map(lambda part: score(program, model.logits(part[0]), part[1]), (parts, ids))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: hidden.shape[0]], scored)
def sample_masked(
    program: ModelProgram, rows: SamplerRows, logits: Array, sequences: Array, masks: Array
) -> tuple[SamplerRows, Array]:
    """`sample`, of the tokens whose bits are set in masks [S, W] uint32 (see `sampler_rows` for their order)."""
    return sampling.sample(rows, program.gathered(logits), sample_params(sequences), masks)



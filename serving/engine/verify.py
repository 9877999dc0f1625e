"""The programs of a step in which some sequences go on with guesses at their next tokens, as pure functions.

    forward   tokens and guesses through the model and its pages, then the logits that the draws need
    draw      the draws of each sequence one after another, for as long as its guesses are what was drawn

A guess is right where it is the token that is drawn at its position. A draw depends on the logits, on the tokens before
it and on noise that is a function of seed and position alone, and it is made here as in any other step, with its row as
the tokens before it have left it: so what comes out is, token for token, what would have come without guesses, greedy
or not, with penalties, bad words and grammars. Only a mesh without data shards and without a pipeline has these
programs.

Letters: K the most guesses of a sequence, N = min(T, S * (K + 1)) positions whose logits are computed.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from serving.engine import sampling, steps
from serving.engine.batch import SCORED, SEQUENCE_FIELDS, BatchLayout
from serving.engine.hidden_pages import AnyPool
from serving.engine.request import MAX_LOGPROBS
from serving.engine.sampler_rows import NO_ID, SamplerRows


def num_logits(layout: BatchLayout, most: int) -> int:
    """N above. Where the step is no larger than the draws that it may need, all positions get logits."""
    return min(layout.tokens, layout.sequences * (most + 1))


def forward(
    program: steps.ModelProgram,
    layout: BatchLayout,
    most: int,
    weights: tuple[Array, ...],
    pool: AnyPool,
    last_token: Array,  # [R]
    vector: Array,
    made: Array,  # [K, R] the guesses of each row, from the host or from a draft model
) -> tuple[AnyPool, Array, Array, Array]:
    """Returns (pool, logits [N, V] float32, the block of sequences, the guesses [K, S], `NO_ID` where there is none).

    `most` is K. The logits are whole on every device.
    """
    fields = steps.unpack(vector, layout)
    model = program.model(weights)
    sequences = steps.block_of_sequences(fields)
    numbers = dict(zip(SEQUENCE_FIELDS, sequences, strict=True))
    first = numbers["last"] - numbers["guesses"]
    places = first + 1 + jnp.arange(most, dtype=jnp.int32)[:, None]  # of the guesses in the batch
    guessed = places <= numbers["last"]
    token_ids = steps.batch_token_ids(fields, layout, last_token)
    guesses = jnp.where(guessed, made[:, numbers["row"]], NO_ID)
    token_ids = token_ids.at[jnp.where(guessed, places, layout.tokens)].set(jnp.maximum(guesses, 0), mode="drop")
    hidden, pool = steps.walked(program, model, layout, fields, pool, token_ids)
    if num_logits(layout, most) < layout.tokens:
        hidden = hidden[jnp.minimum(jnp.concatenate([first[None], places]), numbers["last"]).reshape(-1)]
    logits = program.gathered(program.without_padding(model.logits(hidden)))
    return pool, logits, sequences, guesses


def draw(
    layout: BatchLayout,
    rows: SamplerRows,
    logits: Array,  # [N, V]
    sequences: Array,
    guesses: Array,  # [K, S]
    masks: Array,  # [K + 1, S, W] uint32: what a grammar allows at each draw
) -> tuple[SamplerRows, Array, tuple[Array, ...]]:
    """Returns (rows, tokens [K + 1, S], their scores as `steps.score` has them, of each draw).

    Draws of a sequence after its first wrong guess give `NO_TOKEN` and are not recorded. The scores mean nothing
    where no sequence of the step wants any.
    """
    most = guesses.shape[0]
    numbers = dict(zip(SEQUENCE_FIELDS, sequences, strict=True))
    params = steps.sample_params(sequences)
    first = numbers["last"] - numbers["guesses"]
    every_position = num_logits(layout, most) == layout.tokens
    size = first.shape[0]
    wants_scores = jnp.any(numbers["flags"] & SCORED != 0)
    shapes = jax.eval_shape(lambda: sampling.top_logprobs(logits[:size], first, MAX_LOGPROBS))

    def one(
        state: tuple[SamplerRows, Array], at: tuple[Array, Array, Array]
    ) -> tuple[tuple[SamplerRows, Array], tuple[Array, tuple[Array, ...]]]:
        rows, agreed = state
        number, guess, mask = at
        where = jnp.minimum(first + number, numbers["last"]) if every_position else number * size + jnp.arange(size)
        here = logits[where]
        drawing = replace(
            params,
            position=params.position - numbers["guesses"] + number,
            needs_sample=params.needs_sample & agreed,
            ban_stops=number < numbers["stop_bans"],
        )
        rows, tokens = sampling.sample(rows, here, drawing, mask)
        scores = lax.cond(
            wants_scores,
            lambda: sampling.top_logprobs(here, tokens, MAX_LOGPROBS),
            lambda: tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in shapes),
        )
        return (rows, agreed & (number < numbers["guesses"]) & (tokens == guess)), (tokens, scores)

    numbered = jnp.arange(most + 1, dtype=jnp.int32)
    expected = jnp.concatenate([guesses, jnp.full((1, size), NO_ID, jnp.int32)])
    (rows, _), (tokens, scores) = lax.scan(one, (rows, jnp.ones(size, bool)), (numbered, expected, masks))
    return rows, tokens, scores

"""The program of a draft model, as a pure function: it reads what it has not read of each sequence, and goes on with
guesses, each from the one before.

It draws as the model would that it guesses for, with the same noise (seed, position), so that where their distributions
agree, so do their draws. It knows nothing of penalties, biases and grammars.

Letters: K the most guesses of a sequence, R rows.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.ragged import Pool
from serving.engine import sampling, steps
from serving.engine.batch import SEQUENCE_FIELDS, BatchLayout
from serving.engine.sampler_rows import NO_ID


def draft(
    program: steps.ModelProgram,
    layout: BatchLayout,
    most: int,
    num_rows: int,
    weights: tuple[Array, ...],
    pool: Pool,
    vector: Array,  # of ranges whose tokens are all known; `guesses` says how many are to be made after each
) -> tuple[Pool, Array]:
    """Returns (pool, guesses [K, R]), `NO_ID` where there is none.

    The K and V of a guess are written where its position's will be, those of a sequence's last guess not at all.
    """
    fields = steps.unpack(vector, layout)
    model = program.model(weights)
    sequences = steps.block_of_sequences(fields)
    numbers = dict(zip(SEQUENCE_FIELDS, sequences, strict=True))
    hidden, pool = steps.walked(program, model, layout, fields, pool, fields["token_ids"].reshape(-1))
    first = _drawn(program, model, hidden[numbers["last"]], sequences)
    order = jnp.argsort(-numbers["guesses"])  # those that go on are the first ones, in every round
    sequences, tables, first = sequences[:, order], fields["page_table"][0, order], first[order]
    row, wanted = sequences[SEQUENCE_FIELDS.index("row")], sequences[SEQUENCE_FIELDS.index("guesses")]
    made = jnp.full((most, num_rows), NO_ID, jnp.int32)
    made = made.at[0, jnp.where(wanted > 0, row, num_rows)].set(first, mode="drop")

    def go_on(number: Array, state: tuple[Pool, Array, Array]) -> tuple[Pool, Array, Array]:
        pool, tokens, made = state
        one_each = _one_each(sequences, tables, jnp.sum(wanted > number, dtype=jnp.int32), number)
        single = BatchLayout(layout.sequences, layout.sequences, layout.table_width)
        hidden, pool = steps.walked(program, model, single, one_each, pool, jnp.maximum(tokens, 0))
        tokens = _drawn(program, model, hidden, steps.block_of_sequences(one_each))
        made = made.at[number, jnp.where(wanted > number, row, num_rows)].set(tokens, mode="drop")
        return pool, tokens, made

    pool, _, made = lax.fori_loop(1, jnp.max(wanted), go_on, (pool, first, made))
    return pool, made


def _one_each(sequences: Array, tables: Array, going_on: Array, number: Array) -> dict[str, Array]:
    """The batch in which each of the first `going_on` sequences computes its guess before the `number`-th."""
    size = sequences.shape[1]
    each = jnp.arange(size, dtype=jnp.int32)
    kv_len = SEQUENCE_FIELDS.index("kv_len")
    positions = sequences[kv_len] + number - 1
    return {
        "counts": jnp.stack([going_on, going_on])[None],
        "positions": positions[None],
        "sequence_ids": jnp.where(each < going_on, each, size)[None],
        "cu_q_lens": jnp.minimum(jnp.arange(size + 1, dtype=jnp.int32), going_on)[None],
        "sequences": sequences.at[kv_len].set(positions + 1)[None],
        "page_table": tables[None],
    }


def _drawn(program: steps.ModelProgram, model: Any, hidden: Array, sequences: Array) -> Array:
    logits = program.gathered(program.without_padding(model.logits(hidden)))
    return sampling.drawn_from(logits, steps.sample_params(sequences))

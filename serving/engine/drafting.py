"""The program of what guesses on the device, as a pure function: it reads what it has not read of each sequence, and
goes on with guesses, each from the one before.

It draws as the model would that it guesses for, with the same noise (seed, position), so that where their distributions
agree, so do their draws. It knows nothing of penalties, biases and grammars.

Letters: K the most guesses of a sequence, R rows.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array, lax

from serving.engine import hidden_pages, sampling, steps
from serving.engine.batch import SEQUENCE_FIELDS, BatchLayout
from serving.engine.hidden_pages import AnyPool
from serving.engine.sampler_rows import NO_ID

Fields = dict[str, Array]  # see `steps.unpack`


@dataclass(frozen=True, slots=True)
class Walk:
    """A batch to be walked by what guesses: `model` is it, with its weights; `pool` its pages."""

    program: steps.ModelProgram
    model: Any
    layout: BatchLayout
    fields: Fields
    pool: AnyPool

    def over(self, entering: Any) -> tuple[Array, AnyPool]:
        """(hidden [T, D], pool); `entering` is what its first layer takes."""
        return steps.walked(self.program, self.model, self.layout, self.fields, self.pool, entering)

    @property
    def token_ids(self) -> Array:
        """[T]"""
        return self.fields["token_ids"].reshape(-1)


class Guesser(Protocol):
    """How a model of its kind walks a batch, and what its logits are.

    `ahead`: its entry at position p is made from the token at position p + ahead.
    """

    @property
    def ahead(self) -> int: ...

    def read(self, walk: Walk, *given: Array) -> tuple[Array, AnyPool]:
        """(hidden [T, D], pool) of tokens that are known; `given` is what it needs of the model it guesses for."""
        ...

    def go_on(self, walk: Walk, guesses: Array, hidden: Array) -> tuple[Array, AnyPool]:
        """The same of one guess each: guesses [S], hidden [S, D] that they were drawn from."""
        ...

    def logits(self, program: steps.ModelProgram, model: Any, hidden: Array) -> Array:
        """[N, D] -> [N, V of the model that it guesses for], whole on every device."""
        ...


class DraftGuesser:
    """A small model of the same kind as the one that it guesses for: tokens are all it needs."""

    ahead = 0

    def read(self, walk: Walk, *given: Array) -> tuple[Array, AnyPool]:
        return walk.over(walk.token_ids)

    def go_on(self, walk: Walk, guesses: Array, hidden: Array) -> tuple[Array, AnyPool]:
        return walk.over(guesses)

    def logits(self, program: steps.ModelProgram, model: Any, hidden: Array) -> Array:
        return program.gathered(program.without_padding(model.logits(hidden)))


class HeadGuesser:
    """An EAGLE-3 head (see `models/eagle3.py`): `given` are the pages of hidden states of the model."""

    ahead = 1

    def __init__(self, vocab_size: int) -> None:
        """Of the model."""
        self._vocab_size = vocab_size

    def read(self, walk: Walk, *given: Array) -> tuple[Array, AnyPool]:
        states = hidden_pages.read(given[0], steps.ragged_batch(walk.fields, walk.layout))
        return walk.over((walk.token_ids, walk.model.fused(states)))

    def go_on(self, walk: Walk, guesses: Array, hidden: Array) -> tuple[Array, AnyPool]:
        return walk.over((guesses, hidden))

    def logits(self, program: steps.ModelProgram, model: Any, hidden: Array) -> Array:
        own = program.gathered(program.without_padding(model.logits(hidden)))
        return jnp.full((own.shape[0], self._vocab_size), -jnp.inf).at[:, model.targets[...]].set(own)


def draft(
    guesser: Guesser,
    program: steps.ModelProgram,
    layout: BatchLayout,
    most: int,
    num_rows: int,
    weights: tuple[Array, ...],
    pool: AnyPool,
    vector: Array,  # of ranges whose tokens are all known; `guesses` says how many are to be made after each
    *given: Array,  # see `Guesser.read`
) -> tuple[AnyPool, Array]:
    """Returns (pool, guesses [K, R]), `NO_ID` where there is none.

    The K and V of a guess are written where its position's will be, those of a sequence's last guess not at all.
    """
    fields = steps.unpack(vector, layout)
    model = program.model(weights)
    sequences = steps.block_of_sequences(fields)
    numbers = dict(zip(SEQUENCE_FIELDS, sequences, strict=True))
    hidden, pool = guesser.read(Walk(program, model, layout, fields, pool), *given)
    hidden = hidden[numbers["last"]]
    first = _drawn(guesser, program, model, hidden, sequences)
    order = jnp.argsort(-numbers["guesses"])  # those that go on are the first ones, in every round
    sequences, tables, first, hidden = sequences[:, order], fields["page_table"][0, order], first[order], hidden[order]
    row, wanted = sequences[SEQUENCE_FIELDS.index("row")], sequences[SEQUENCE_FIELDS.index("guesses")]
    made = jnp.full((most, num_rows), NO_ID, jnp.int32)
    made = made.at[0, jnp.where(wanted > 0, row, num_rows)].set(first, mode="drop")

    def go_on(number: Array, state: tuple[AnyPool, Array, Array, Array]) -> tuple[AnyPool, Array, Array, Array]:
        pool, tokens, hidden, made = state
        one_each = _one_each(sequences, tables, jnp.sum(wanted > number, dtype=jnp.int32), number)
        single = BatchLayout(layout.sequences, layout.sequences, layout.table_width)
        hidden, pool = guesser.go_on(Walk(program, model, single, one_each, pool), jnp.maximum(tokens, 0), hidden)
        tokens = _drawn(guesser, program, model, hidden, steps.block_of_sequences(one_each))
        made = made.at[number, jnp.where(wanted > number, row, num_rows)].set(tokens, mode="drop")
        return pool, tokens, hidden, made

    pool, _, _, made = lax.fori_loop(1, jnp.max(wanted), go_on, (pool, first, hidden, made))
    return pool, made


def _one_each(sequences: Array, tables: Array, going_on: Array, number: Array) -> Fields:
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


def _drawn(guesser: Guesser, program: steps.ModelProgram, model: Any, hidden: Array, sequences: Array) -> Array:
    params = steps.sample_params(sequences)
    params = replace(params, position=params.position + guesser.ahead)
    return sampling.drawn_from(guesser.logits(program, model, hidden), params)

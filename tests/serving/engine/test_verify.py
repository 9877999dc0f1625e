"""What is drawn behind a guess has the distribution that it has without guesses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from serving.engine import verify
from serving.engine.batch import FLOATS, INTEGERS, NUMBERS, SAMPLES, SEQUENCE_FIELDS, BatchLayout
from serving.engine.sampler_rows import ALL_BITS, NO_ID, init_rows

VOCAB_SIZE = 8
SEQUENCES = 64
CALLS = 100
LIMIT = 29.9  # chi-square with 7 degrees of freedom is above it once in ten thousand times


def block(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The block of sequences that each have a token and a guess, and sample at temperature 1."""
    every = np.ones(SEQUENCES)
    numbers = {
        "row": np.arange(SEQUENCES),
        "flags": SAMPLES * every,
        "kv_len": positions,
        "last": 2 * np.arange(SEQUENCES) + 1,
        "guesses": every,
    }
    floats = {"temperature": every, "top_p": every, "repetition": every}
    integers = {"seed_lo": seeds}
    rows = [numbers.get(name, 0 * every).astype(np.int32) for name in NUMBERS]
    rows += [floats.get(name, 0 * every).astype(np.float32).view(np.int32) for name in FLOATS]
    rows += [integers.get(name, 0 * every).astype(np.int32) for name in INTEGERS]
    assert len(rows) == len(SEQUENCE_FIELDS)
    return np.stack(rows)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    wanted = expected * counts.sum()
    return float(np.sum((counts - wanted) ** 2 / wanted))


def test_draws_before_and_behind_a_guess_have_their_logits_distributions() -> None:
    rng = np.random.default_rng(1)
    of_positions = rng.normal(0.0, 1.0, (2, VOCAB_SIZE)).astype(np.float32)  # before the guess, and behind it
    layout = BatchLayout(2 * SEQUENCES, SEQUENCES, 1)
    draw = jax.jit(functools.partial(verify.draw, layout))
    rows = init_rows(SEQUENCES, VOCAB_SIZE)
    logits = jnp.asarray(np.tile(of_positions, (SEQUENCES, 1)))
    masks = np.full((2, SEQUENCES, 1), ALL_BITS, np.uint32)
    counts = np.zeros((2, VOCAB_SIZE))
    accepted = 0
    for call in range(CALLS):
        seeds, guesses = call * SEQUENCES + np.arange(SEQUENCES), rng.integers(0, VOCAB_SIZE, (1, SEQUENCES))
        described = block(seeds, 5 + rng.integers(0, 9, SEQUENCES))
        rows, tokens, _ = draw(rows, logits, described, guesses.astype(np.int32), masks)
        first, second = np.asarray(tokens)
        right = first == guesses[0]
        assert np.all((second == NO_ID) == ~right)
        np.testing.assert_array_equal(np.asarray(rows.last_token), np.where(right, second, first))
        counts[0] += np.bincount(first, minlength=VOCAB_SIZE)
        counts[1] += np.bincount(second[right], minlength=VOCAB_SIZE)
        accepted += int(right.sum())
    assert accepted > 500
    for found, raw in zip(counts, of_positions, strict=True):
        assert chi_square(found, np.exp(raw) / np.exp(raw).sum()) < LIMIT

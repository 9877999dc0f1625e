from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from serving.engine.plan import Admission
from serving.engine.request import SamplingParams
from serving.engine.sampler_rows import SamplerRows, admission_arrays, admit, init_rows
from serving.engine.sampling import (
    NO_TOKEN,
    SampleParams,
    edited_logits,
    exponential_noise,
    greedy,
    kept_from,
    sample,
    top_logprobs,
)
from tests.serving.engine.sampler_reference import distribution, edited, packed

VOCAB = 23  # odd, and not a multiple of 32
NUM_ROWS = 20
DRAWS = 200_000
PROMPT = (3, 3, 7, 20)
OUTPUT = (5, 6, 5, 11, 12)
LOGITS = np.random.default_rng(7).normal(0.3, 1.3, VOCAB).astype(np.float32)
_DESCENDING = np.argsort(-LOGITS)
LOGITS[_DESCENDING[5]] = LOGITS[_DESCENDING[4]]  # so that top_k=5 keeps six

jit_sample = jax.jit(sample)
jit_greedy = jax.jit(greedy)
jit_admit = jax.jit(admit)
jit_edited = jax.jit(edited_logits)


def admitted(
    samplings: Sequence[SamplingParams], prompt: Sequence[int] = (), output: Sequence[int] = (), vocab: int = VOCAB
) -> SamplerRows:
    rows = init_rows(NUM_ROWS, vocab)
    for row, sampling in enumerate(samplings):
        admission = Admission(
            row=row, sampling=sampling, prompt_token_ids=tuple(prompt), output_token_ids=tuple(output)
        )
        rows = jit_admit(rows, admission_arrays(admission, vocab))
    return rows


@jax.jit
def tokens_at(rows: SamplerRows, params: SampleParams, positions: jax.Array, seeds: jax.Array) -> jax.Array:
    """Tokens [N] that one sequence draws from LOGITS at N positions, with N lower halves of its seed."""

    def one(position: jax.Array, seed: jax.Array) -> jax.Array:
        here = replace(params, position=position[None], seed_lo=seed[None])
        return sample(rows, jnp.array(LOGITS[None]), here)[1][0]

    return jax.vmap(one)(positions, seeds)


def drawn(sampling: SamplingParams, num_output: int = 0) -> np.ndarray:
    """Tokens [DRAWS] at consecutive positions, after PROMPT and OUTPUT."""
    params = packed([sampling], num_output=[num_output])
    seeds = jnp.broadcast_to(params.seed_lo, DRAWS)
    return np.asarray(tokens_at(admitted([sampling], PROMPT, OUTPUT), params, jnp.arange(DRAWS), seeds))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Distance in standard deviations above its mean; infinite where something impossible was drawn."""
    expected = probabilities * counts.sum()
    possible = expected > 0
    if counts[~possible].any():
        return float("inf")
    freedom = possible.sum() - 1
    statistic = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    return float((statistic - freedom) / np.sqrt(2 * freedom))


SETTINGS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "hot": SamplingParams(temperature=1.7),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.8),
    "min_p": SamplingParams(min_p=0.131),  # the next token has 0.129 of the peak
    "presence": SamplingParams(presence_penalty=0.9),
    "frequency": SamplingParams(frequency_penalty=0.7),
    "negative penalties": SamplingParams(frequency_penalty=-0.4, presence_penalty=-0.2),
    "repetition": SamplingParams(repetition_penalty=1.4),
    "bias": SamplingParams(logit_bias=((2, 1.5), (9, -100.0), (22, 0.7))),
    "allowed": SamplingParams(allowed_token_ids=(0, 5, 13, 22)),
    "bad words": SamplingParams(bad_words=((1,), (12, 2), (11, 12, 9), (5, 12, 0), (7, 20, 8))),
    "min_tokens": SamplingParams(min_tokens=6, eos_token_ids=(2,), stop_token_ids=(4, 19)),
    "min_tokens reached": SamplingParams(min_tokens=5, eos_token_ids=(2,), stop_token_ids=(4, 19)),
    "filters": SamplingParams(temperature=1.4, top_k=12, top_p=0.85, min_p=0.05),
    "everything": SamplingParams(
        temperature=1.3,
        top_k=14,
        top_p=0.9,
        min_p=0.03,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        repetition_penalty=1.2,
        logit_bias=((2, 1.5), (5, 2.0)),
        allowed_token_ids=tuple(range(0, 20)),
        bad_words=((12, 2),),
        min_tokens=9,
        eos_token_ids=(0,),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_follow_the_closed_form_distribution(name: str) -> None:
    s = replace(SETTINGS[name], seed=2**40 + 17)
    counts = np.bincount(drawn(s, num_output=len(OUTPUT)), minlength=VOCAB)
    assert chi_square(counts, distribution(LOGITS, s, PROMPT, OUTPUT)) < 4
    hotter = replace(s, temperature=s.temperature * 1.03)
    assert chi_square(counts, distribution(LOGITS, hotter, PROMPT, OUTPUT)) > 4, "too few draws to see an error of 3%"


@pytest.mark.parametrize("name", ["presence", "frequency", "repetition", "bias", "bad words", "min_tokens", "allowed"])
def test_each_edit_changes_what_the_frequency_check_sees(name: str) -> None:
    with_it = distribution(LOGITS, SETTINGS[name], PROMPT, OUTPUT)
    without = distribution(LOGITS, SamplingParams(), PROMPT, OUTPUT)
    assert np.abs(with_it - without).max() > 0.005


def test_frequencies_hold_over_seeds_at_one_position() -> None:
    s = SamplingParams()
    seeds = jnp.arange(DRAWS, dtype=jnp.uint32) << 7
    tokens = tokens_at(admitted([s]), packed([s]), jnp.full(DRAWS, 9), seeds)
    assert chi_square(np.bincount(tokens, minlength=VOCAB), distribution(LOGITS, s)) < 4


def test_tokens_at_neighbouring_positions_are_independent() -> None:
    s = SamplingParams(seed=5, top_k=5)
    tokens = drawn(s)
    pairs = np.bincount(tokens[:-1] * VOCAB + tokens[1:], minlength=VOCAB**2)
    single = distribution(LOGITS, s)
    assert chi_square(pairs, np.outer(single, single).ravel()) < 4


def test_small_noise_is_fine_grained() -> None:
    # The winner among V equals has noise near 1 / V. Were it a multiple of 2^-23, as from jax.random.exponential, 2^20
    # tokens would tie often, and ties favour low ids.
    seed, position = jnp.array([6], jnp.uint32), jnp.array([0], jnp.int32)
    noise = np.asarray(exponential_noise(seed, seed, position, 2**20))
    small = noise[noise < 1e-3]
    assert abs(small.size - 2**20 * 1e-3) < 150
    assert np.unique(small).size > small.size - 4


def test_noise_is_the_stream_of_jax_random() -> None:
    seed, position = 0x0123456789ABCDEF, 77
    key = jax.random.wrap_key_data(jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32), impl="threefry2x32")
    with jax.threefry_partitionable(True):
        bits = np.asarray(jax.random.bits(jax.random.fold_in(key, position), (1000,), jnp.uint32))
    expected = -np.log1p(-(bits // 2 + 0.5) / 2**31)
    hi, lo = jnp.array([seed >> 32], jnp.uint32), jnp.array([seed & 0xFFFFFFFF], jnp.uint32)
    noise = np.asarray(exponential_noise(hi, lo, jnp.array([position], jnp.int32), 1000))[0]
    np.testing.assert_allclose(noise, expected, rtol=1e-5, atol=1e-9)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary_size() -> None:
    seeds, position = jnp.array([1, 2], jnp.uint32), jnp.array([3, 2**31 - 1], jnp.int32)
    small = np.asarray(exponential_noise(seeds, seeds, position, 33))
    large = np.asarray(exponential_noise(seeds, seeds, position, 1000))
    np.testing.assert_array_equal(small, large[:, :33])
    assert (large > 0).all()
    assert np.isfinite(large).all()


def test_a_token_depends_on_its_seed_and_position_alone() -> None:
    rng = np.random.default_rng(3)
    names = list(SETTINGS)
    samplings = [replace(SETTINGS[n], seed=int(rng.integers(2**63))) for n in names]
    logits = rng.normal(0, 2, (len(names), VOCAB)).astype(np.float32)
    positions = rng.integers(0, 5000, len(names)).tolist()
    rows = admitted(samplings, PROMPT, OUTPUT)
    many = jit_sample(rows, jnp.array(logits), packed(samplings, positions=positions))[1]
    order = rng.permutation(len(names))
    shuffled = jit_sample(
        admitted([samplings[i] for i in order], PROMPT, OUTPUT),
        jnp.array(logits[order]),
        packed([samplings[i] for i in order], positions=[positions[i] for i in order]),
    )[1]
    np.testing.assert_array_equal(np.asarray(many)[order], shuffled)
    for i in range(len(names)):
        alone = jit_sample(
            rows, jnp.array(logits[i : i + 1]), packed([samplings[i]], rows=[i], positions=[positions[i]])
        )
        assert int(alone[1][0]) == int(many[i])


def test_temperature_zero_takes_the_lowest_of_the_most_likely() -> None:
    logits = np.full((4, VOCAB), -9.0, np.float32)
    logits[0, [5, 8]] = 3.0
    logits[1] = 0.0
    logits[2, [7, 9]] = -0.0, 0.0
    cold = [SamplingParams(temperature=0.0, top_k=1, top_p=0.1, min_p=0.5, seed=i) for i in range(4)]
    for samplings in (cold, [*cold[:3], SamplingParams(seed=3)]):
        _, tokens = jit_sample(init_rows(NUM_ROWS, VOCAB), jnp.array(logits), packed(samplings))
        assert tokens[:3].tolist() == [5, 0, 7]


def test_temperature_zero_comes_after_penalties_and_bans() -> None:
    logits = np.full((1, VOCAB), -9.0, np.float32)
    logits[0, :4] = 5, 4, 3, 2
    s = SamplingParams(temperature=0.0, frequency_penalty=1.0, bad_words=((1,),), logit_bias=((3, 1.5),))
    assert jit_sample(admitted([s], output=(0, 0)), jnp.array(logits), packed([s]))[1].tolist() == [3]


def test_greedy_is_the_argmax_and_stores_it_as_the_last_token() -> None:
    logits = np.random.default_rng(1).normal(size=(4, VOCAB)).astype(np.float32)
    before = init_rows(NUM_ROWS, VOCAB)
    params = packed([SamplingParams(temperature=0.0)] * 4, rows=[5, 3, 0, 2])
    after, tokens = jit_greedy(before.last_token, jnp.array(logits), params)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    assert after[:6].tolist() == [tokens[2], 0, tokens[3], tokens[1], 0, tokens[0]]
    np.testing.assert_array_equal(jit_sample(before, jnp.array(logits), params)[1], tokens)


# A loaded machine must not fail a test: no deadline, and no health check that looks at the clock.
UNTIMED = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
LEVELS = st.lists(
    st.sampled_from([-jnp.inf, -3.5, -1.0, -0.0, 0.0, 1e-30, 0.5, 0.5000001, 8.0]), min_size=37, max_size=37
)
NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=37, max_size=37)
jit_kept = jax.jit(lambda x, params: kept_from(x, jnp.max(x, axis=-1), params))


@settings(UNTIMED, max_examples=150)
@given(values=st.one_of(LEVELS, NUMBERS), top_k=st.integers(1, 40))
def test_top_k_keeps_the_kth_and_its_equals(values: list[float], top_k: int) -> None:
    logits = np.array([[*values[1:], 9.0]], np.float32)
    kept = logits >= np.asarray(jit_kept(jnp.array(logits), packed([SamplingParams(top_k=top_k)])))[:, None]
    kth = np.sort(logits[0])[::-1][min(top_k, 37) - 1]
    np.testing.assert_array_equal(kept[0], logits[0] >= kth)


def test_a_threshold_between_zeros_and_ones_leaves_the_zeros_out() -> None:
    """Halving the integers between -3 and 9 lands on a subnormal, which a flushing machine compares as 0."""
    logits = np.array([[0.0] * 15 + [1.0] * 20 + [-3.0, 9.0]], np.float32)
    kept = np.asarray(jit_kept(jnp.array(logits), packed([SamplingParams(top_k=21)])))
    assert (logits >= kept[:, None]).sum() == 21


@settings(UNTIMED, max_examples=150)
@given(
    values=st.one_of(LEVELS, NUMBERS),
    top_p=st.floats(0.0, 0.9990234375, width=32),
    temperature=st.sampled_from([0.3, 1.0, 50.0]),
    top_k=st.sampled_from([0, 9]),
)
def test_top_p_keeps_the_smallest_sufficient_set_and_its_equals(
    values: list[float], top_p: float, temperature: float, top_k: int
) -> None:
    logits = np.array([[*values[1:], 9.0]], np.float32)
    params = packed([SamplingParams(top_p=top_p, temperature=temperature, top_k=top_k)])
    kept = logits[0] >= float(jit_kept(jnp.array(logits), params)[0])
    x = logits[0].astype(np.float64)
    weights = np.exp((x - x.max()) / temperature)
    weights[x < np.sort(x)[::-1][(top_k or 37) - 1]] = 0
    weights /= weights.sum()
    least = x[kept].min()
    assert kept.any()
    np.testing.assert_array_equal(kept, x >= least)
    assert weights[kept].sum() >= top_p - 1e-6
    assert weights[x > least].sum() < top_p + 1e-6


def test_thresholds_that_are_off_are_exactly_off() -> None:
    rng = np.random.default_rng(2)
    logits = jnp.array(rng.normal(0, 30, (3, VOCAB)), jnp.float32)
    off = packed([SamplingParams(), SamplingParams(top_k=VOCAB), SamplingParams(temperature=0.01)])
    assert np.isneginf(jit_kept(logits, off)).all()
    mixed = packed([SamplingParams(top_k=3), SamplingParams(top_p=0.5), SamplingParams()])
    assert np.isneginf(jit_kept(logits, mixed)).tolist() == [False, False, True]


def test_edits_that_are_off_change_no_bit() -> None:
    logits = jnp.array(np.random.default_rng(4).normal(0, 9, (2, VOCAB)), jnp.float32)
    samplings = [SamplingParams(), replace(SETTINGS["everything"], temperature=1.0)]
    rows = admitted(samplings, PROMPT, OUTPUT)
    result = np.asarray(jit_edited(rows, logits, packed(samplings, num_output=[5, 5])))
    np.testing.assert_array_equal(result[0], logits[0])
    np.testing.assert_allclose(
        result[1], edited(np.asarray(logits[1]), samplings[1], PROMPT, OUTPUT), rtol=1e-6, atol=1e-6
    )


def test_a_row_that_was_not_admitted_does_not_inherit_bans_or_bias() -> None:
    heir, owner = SamplingParams(), SETTINGS["everything"]
    rows = admitted([owner, owner], PROMPT, OUTPUT)
    logits = np.tile(LOGITS, (2, 1))
    params = packed([heir, owner], num_output=[5, 5])
    result = jit_edited(rows, jnp.array(logits), replace(params, stateful=jnp.array([False, True])))
    np.testing.assert_array_equal(result[0], logits[0])
    np.testing.assert_allclose(result[1], edited(logits[1], owner, PROMPT, OUTPUT), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SamplingParams(temperature=0.7), [TemperatureLogitsWarper(0.7)]),
        (SamplingParams(top_k=40), [TopKLogitsWarper(40)]),
        (SamplingParams(top_p=0.9), [TopPLogitsWarper(0.9)]),
        (SamplingParams(min_p=0.02), [MinPLogitsWarper(0.02)]),
        (SamplingParams(repetition_penalty=1.3), [RepetitionPenaltyLogitsProcessor(1.3)]),
        (
            SamplingParams(temperature=1.5, top_k=60, top_p=0.8, repetition_penalty=0.8),
            [
                RepetitionPenaltyLogitsProcessor(0.8),
                TemperatureLogitsWarper(1.5),
                TopKLogitsWarper(60),
                TopPLogitsWarper(0.8),
            ],
        ),
    ],
)
def test_distributions_agree_with_transformers(ours: SamplingParams, theirs: list) -> None:
    vocab, prompt, output = 501, (1, 2, 2, 300), (7, 7, 499)
    logits = np.random.default_rng(11).normal(0, 2, vocab).astype(np.float32)
    scores = torch.tensor(logits)[None]
    for processor in theirs:
        scores = processor(torch.tensor([[*prompt, *output]]), scores)
    expected = torch.softmax(scores.double(), -1)[0].numpy()
    rows, params = admitted([ours], prompt, output, vocab), packed([ours])
    changed = jit_edited(rows, jnp.array(logits[None]), params)
    weights = np.exp((np.asarray(changed[0], np.float64) - float(changed.max())) / ours.temperature)
    kept = (np.asarray(changed[0]) >= float(jit_kept(changed, params)[0])) & (weights >= ours.min_p)
    np.testing.assert_allclose(weights * kept / (weights * kept).sum(), expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("vocab", [1, 33, 64])
def test_allowed_tokens_hold_at_every_vocabulary_size(vocab: int) -> None:
    allowed = sorted({0, vocab // 2, vocab - 1})
    s = SamplingParams(allowed_token_ids=tuple(allowed))
    result = jit_edited(admitted([s], vocab=vocab), jnp.zeros((1, vocab)), packed([s]))
    assert np.flatnonzero(np.isfinite(result[0])).tolist() == allowed


def test_a_bad_word_is_banned_only_after_its_beginning() -> None:
    s = SamplingParams(bad_words=((4, 5, 6), (8,)))
    logits = jnp.zeros((1, VOCAB))
    for prompt, output, banned in [
        ((), (4, 5), {6, 8}),
        ((4, 5), (), {8}),  # the beginning must be output, as in vLLM
        ((4,), (5,), {8}),
        ((), (4, 5, 1), {8}),
        ((), (4, 5, 4, 5), {6, 8}),
    ]:
        result = jit_edited(admitted([s], prompt, output), logits, packed([s]))
        assert set(np.flatnonzero(np.isneginf(result[0])).tolist()) == banned


def test_logits_without_a_drawable_token_give_no_token_and_hurt_no_neighbour() -> None:
    nothing_left = SamplingParams(allowed_token_ids=(2,), bad_words=((2,),))
    for broken, sampling in [
        ({3: np.nan}, SamplingParams()),
        ({3: np.nan}, SETTINGS["filters"]),
        (dict.fromkeys(range(VOCAB), np.nan), SETTINGS["filters"]),
        (dict.fromkeys(range(VOCAB), -np.inf), SETTINGS["filters"]),
        ({5: np.inf}, SamplingParams()),
        ({}, nothing_left),
    ]:
        logits = np.tile(LOGITS, (4, 1))
        logits[1, list(broken)] = list(broken.values())
        samplings = [SamplingParams(seed=1), sampling, SamplingParams(seed=1), SamplingParams(seed=1)]
        rows = admitted(samplings)
        after, tokens = jit_sample(rows, jnp.array(logits), packed(samplings))
        expected = int(jit_sample(rows, jnp.array(LOGITS[None]), packed(samplings[:1]))[1][0])
        assert tokens.tolist() == [expected, NO_TOKEN, expected, expected]
        assert after.output_counts.sum(-1)[:5].tolist() == [1, 0, 1, 1, 0]
        if broken:
            _, tokens = jit_greedy(rows.last_token, jnp.array(logits), packed([SamplingParams(temperature=0.0)] * 4))
            assert tokens.tolist() == [LOGITS.argmax(), NO_TOKEN, LOGITS.argmax(), LOGITS.argmax()]


def test_logprobs_and_ranks_are_of_the_raw_logits() -> None:
    logits = np.random.default_rng(5).normal(0, 3, (4, 51)).astype(np.float32)
    logits[0, 10] = logits[0, 40]
    token_ids = np.array([10, 0, 50, int(logits[3].argmax())])
    logprob, rank, top_ids, top = (np.asarray(a) for a in top_logprobs(jnp.array(logits), jnp.array(token_ids), 7))
    exact = logits.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    np.testing.assert_allclose(logprob, exact[np.arange(4), token_ids], atol=2e-6)
    np.testing.assert_array_equal(rank, 1 + (logits > logits[np.arange(4), token_ids][:, None]).sum(-1))
    assert rank[3] == 1
    np.testing.assert_array_equal(top_ids, np.argsort(-logits, axis=-1, kind="stable")[:, :7])
    np.testing.assert_allclose(top, np.take_along_axis(exact, top_ids, -1), atol=2e-6)

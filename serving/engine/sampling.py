"""Logits to tokens, inside jit, for rows that each have their own parameters. Everything is float32.

The stages, in order. A stage that no row of the batch needs is skipped at run time, and for a row that does not ask for
it a stage changes no bit.

1. Repetition penalty over prompt and output tokens: a positive logit is divided by it, any other multiplied (CTRL,
   arXiv:1909.05858). Then `frequency * count` and, where count > 0, `presence` are subtracted (OpenAI); count is of
   output tokens.
2. logit_bias is added.
3. Bans set the logit to -inf: tokens outside `allowed`, or outside the mask that a grammar gives for this step; end
   and stop tokens while min_tokens is not reached; the last token of each bad word whose other tokens are the latest
   output tokens (output only, as in vLLM: a prompt that ends in the start of a bad word does not ban).
4. Temperature 0 takes the most likely token, lowest id first, and the rest does not apply. Otherwise token v weighs
   w(v) = exp((logit(v) - max) / temperature), so that the most likely weighs 1.
5. min_p keeps w(v) >= min_p. top_k keeps the k most likely and every token equal to the k-th. top_p then sees what both
   kept, with the mass of that set as 1, and keeps the smallest set of most likely tokens whose mass is at least top_p,
   and every token equal to the least likely of those. Each keeps the most likely token. Masses are float32 sums: a set
   within about 1e-6 of top_p may fall on either side.
6. The draw is Gumbel-max in its exponential form: argmax of w(v) / e(v), e(v) ~ Exp(1), has the distribution of the
   kept weights (log w - log e is the perturbed logit). e is a function of (seed, position, v) alone, so a token does
   not depend on its row, its neighbours, the batch size or the padding.

The thresholds of top_k and top_p come from bisection over the float32 numbers in their order as integers, at most 32
passes over the logits; no sort. On two CPU cores at S=32, V=151936, a sort takes 1000 ms and a pass 3 ms.

A row yields `NO_TOKEN` where nothing can be drawn: its logits hold NaN or +inf, or every token is banned. That is for
the engine to report; the row's state is left as it was.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from serving.engine.request import MAX_LOGPROBS
from serving.engine.sampler_rows import NO_ID, SamplerRows, record, record_last

NO_TOKEN = NO_ID
_INT_MIN = np.int32(-(2**31))
_INT_MAX = np.int32(2**31 - 1)
_LEAST_NORMAL = np.int32(1 << 23)  # the bits of float32's least normal number


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SampleParams:
    """Parameters of the S sequences of one step; padding has needs_sample False and a row that may be anything."""

    row: Array  # [S] int32
    position: Array  # [S] int32; of the token to draw
    needs_sample: Array  # [S] bool
    stateful: Array  # [S] bool; the row was admitted. False: its bias, masks and bad words are another's leftovers
    ban_stops: Array  # [S] bool; fewer than min_tokens output tokens so far
    temperature: Array  # [S] float32
    top_k: Array  # [S] int32; 0 is off
    top_p: Array  # [S] float32; 1 is off
    min_p: Array  # [S] float32; 0 is off
    presence: Array  # [S] float32; 0 is off
    frequency: Array  # [S] float32; 0 is off
    repetition: Array  # [S] float32; 1 is off
    seed_hi: Array  # [S] uint32; the upper half of the 64-bit seed
    seed_lo: Array  # [S] uint32


def greedy(last_token: Array, logits: Array, params: SampleParams) -> tuple[Array, Array]:
    """The most likely tokens of raw logits [S, V], for a batch whose sequences are all plain greedy.

    Takes and returns the rows' `last_token` [R], all that it needs of them, and returns tokens [S] int32, `NO_TOKEN`
    where nothing was asked for or could be drawn.
    """
    peak, tokens = _first_max(logits)
    tokens = jnp.where(params.needs_sample & jnp.isfinite(peak), tokens, NO_TOKEN)
    return record_last(last_token, params.row, tokens), tokens


def sample(
    rows: SamplerRows, logits: Array, params: SampleParams, masks: Array | None = None
) -> tuple[SamplerRows, Array]:
    """Draws one token a sequence from raw logits [S, V] float32, and where `masks` [S, W] uint32 are given, one of
    those whose bits are set.

    Returns the rows, with the tokens recorded, and tokens [S] int32, `NO_TOKEN` where nothing was asked for or could be
    drawn. Sequences of one call must have distinct rows.
    """
    logits = edited_logits(rows, logits, params)
    if masks is not None:
        logits = jnp.where(_unpacked(masks, logits.shape[1]), logits, -jnp.inf)
    tokens = drawn_from(logits, params)
    return record(rows, params.row, tokens), tokens


def drawn_from(logits: Array, params: SampleParams) -> Array:
    """Stages 4 to 6 on logits [S, V] that are edited already, or are not to be: tokens [S], as `sample` has them."""
    peak = jnp.max(logits, axis=-1)
    tokens = lax.cond(
        jnp.any(is_random(params)),
        lambda: _draw(logits, peak, params),
        lambda: _first_max(logits)[1],
    )
    return jnp.where(params.needs_sample & jnp.isfinite(peak), tokens, NO_TOKEN)


def top_logprobs(logits: Array, token_ids: Array, k: int = MAX_LOGPROBS) -> tuple[Array, Array, Array, Array]:
    """Scores tokens [S] under raw logits [S, V], and names the most likely ones.

    Returns (logprob [S] float32, rank [S] int32, top_ids [S, k] int32, top_logprobs [S, k] float32), k at most V. The
    rank is 1 + the number of tokens with a greater logit. For `NO_TOKEN` the first two mean nothing.
    """
    log_mass = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=-1, mode="clip")
    rank = 1 + jnp.sum(logits > chosen, axis=-1, dtype=jnp.int32)
    top, top_ids = lax.top_k(logits, min(k, logits.shape[-1]))
    return (chosen - log_mass)[:, 0], rank, top_ids, top - log_mass


def is_random(params: SampleParams) -> Array:
    return params.needs_sample & (params.temperature > 0)


def _first_max(x: Array) -> tuple[Array, Array]:
    """Maximum over the last axis and the lowest index that has it (INT_MAX for NaN).

    Two plain reductions, which XLA vectorises on CPU; its argmax is a scalar loop, three times slower.
    """
    peak = jnp.max(x, axis=-1, keepdims=True)
    index = jnp.where(x == peak, lax.broadcasted_iota(jnp.int32, x.shape, 1), _INT_MAX)
    return peak[:, 0], jnp.min(index, axis=-1)


# Stages 1 to 3: edits of the logits.


def edited_logits(rows: SamplerRows, logits: Array, params: SampleParams) -> Array:
    """Raw logits [S, V] after penalties, bias and bans."""
    row, stateful = params.row, params.needs_sample & params.stateful
    penalised = (params.repetition != 1) | (params.frequency != 0) | (params.presence != 0)
    restricted = jnp.any(_rows(rows.allowed, row) != np.uint32(0xFFFFFFFF), axis=-1)
    bias_ids = jnp.where(stateful[:, None], _rows(rows.bias_ids, row), NO_ID)
    banned = jnp.concatenate([_banned_stops(rows, params), _banned_bad_words(rows, params)], axis=1)
    banned = jnp.where(stateful[:, None], banned, NO_ID)

    def penalise(x: Array) -> Array:
        counts = _rows(rows.output_counts, row)
        seen = (counts > 0) | _unpacked(_rows(rows.prompt_seen, row), x.shape[1])
        factor = params.repetition[:, None]
        x = jnp.where(seen, jnp.where(x > 0, x / factor, x * factor), x)
        return x - params.frequency[:, None] * counts - params.presence[:, None] * (counts > 0)

    def restrict(x: Array) -> Array:
        allowed = _unpacked(_rows(rows.allowed, row), x.shape[1])
        return jnp.where(allowed | ~stateful[:, None], x, -jnp.inf)

    def edit(x: Array) -> Array:
        x = _when(params.needs_sample & penalised, penalise, x)
        x = _when(bias_ids >= 0, lambda x: _at_ids(x, bias_ids).add(_rows(rows.bias_values, row), mode="drop"), x)
        x = _when(stateful & restricted, restrict, x)
        return _when(banned >= 0, lambda x: _at_ids(x, banned).set(-jnp.inf, mode="drop"), x)

    plain = ~jnp.any(params.needs_sample & penalised | stateful & restricted)
    return _when(~plain | jnp.any(bias_ids >= 0) | jnp.any(banned >= 0), edit, logits)


def _when(needed: Array, stage, logits: Array) -> Array:
    return lax.cond(jnp.any(needed), stage, lambda x: x, logits)


def _rows(array: Array, row: Array) -> Array:
    return array.at[row].get(mode="clip")


def _at_ids(x: Array, ids: Array):
    """Positions (s, ids[s, i]) of x [S, V] for an update that drops negative ids."""
    return x.at[jnp.arange(x.shape[0])[:, None], jnp.where(ids >= 0, ids, x.shape[1])]


def _unpacked(mask: Array, vocab_size: int) -> Array:
    """Bitmask [S, W] uint32 -> bool [S, V]."""
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return bits.reshape(mask.shape[0], -1)[:, :vocab_size] != 0


def _banned_stops(rows: SamplerRows, params: SampleParams) -> Array:
    return jnp.where(params.ban_stops[:, None], _rows(rows.stop_ids, params.row), NO_ID)


def _banned_bad_words(rows: SamplerRows, params: SampleParams) -> Array:
    """[S, MAX_BAD_WORDS]: the last token of each bad word that the output tokens have begun, else NO_ID."""
    words = _rows(rows.bad_words, params.row)
    prefix, last = words[:, :, :-1], words[:, :, -1]
    begun = jnp.all((prefix == NO_ID) | (prefix == _rows(rows.recent, params.row)[:, None, :]), axis=-1)
    return jnp.where(begun, last, NO_ID)


# Stage 5: which tokens may be drawn.


def kept_from(logits: Array, peak: Array, params: SampleParams) -> Array:
    """[S] float32: the least logit that top_k and top_p keep, of edited logits [S, V] with maximum `peak` [S]."""
    all_kept = jnp.full(peak.shape, -jnp.inf)
    by_k = is_random(params) & (params.top_k > 0) & (params.top_k < logits.shape[1])
    by_p = is_random(params) & (params.top_p < 1)

    def kth_largest() -> Array:
        low = jnp.min(_float_order(logits), axis=-1)
        return jnp.where(by_k, _bisect(logits, peak, None, params.top_k, by_k, low), -jnp.inf)

    kept = lax.cond(jnp.any(by_k), kth_largest, lambda: all_kept)

    def nucleus() -> Array:
        weights = _kept_weights(logits, peak, kept, params)
        total = jnp.sum(weights, axis=-1)
        # The tokens below this one weigh less than (1 - top_p) * total together, even were there V of them.
        light = jnp.log(0.5 * (1 - params.top_p) * total / logits.shape[1])
        low = _float_order(jnp.maximum(kept, peak + params.temperature * light))
        low = jnp.maximum(low, jnp.min(_float_order(logits), axis=-1))
        return jnp.where(by_p, _bisect(logits, peak, weights, params.top_p * total, by_p, low), -jnp.inf)

    return jnp.maximum(kept, lax.cond(jnp.any(by_p), nucleus, lambda: all_kept))


def _bisect(logits: Array, peak: Array, weights: Array | None, target: Array, active: Array, low: Array) -> Array:
    """[S] float32: the greatest t for which the tokens with logit >= t weigh `target` [S]; weights None counts them.

    Works on float32 in their order as integers. Invariant: the tokens from `low` [S] on suffice, those from `high` on
    do not. A row is settled when the two are neighbours or exactly `target` is kept, and waits for the slowest row.
    """
    order = _float_order(logits)

    def measured(t: Array) -> Array:
        kept = order >= t[:, None]
        if weights is None:
            return jnp.sum(kept, axis=-1, dtype=jnp.int32)
        return jnp.sum(jnp.where(kept, weights, 0.0), axis=-1)

    def unsettled(low: Array, high: Array, mass: Array) -> Array:
        return active & (low < high - 1) & (mass != target)

    def narrow(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, mass = state
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        middle_mass = measured(middle)
        changes, enough = unsettled(*state), middle_mass >= target
        raised = changes & enough
        return (
            jnp.where(raised, middle, low),
            jnp.where(changes & ~enough, middle, high),
            jnp.where(raised, middle_mass, mass),
        )

    state = (low, _float_order(peak) + 1, measured(low))
    return _from_order(lax.while_loop(lambda s: jnp.any(unsettled(*s)), narrow, state)[0])


def _float_order(x: Array) -> Array:
    """float32 -> int32 of the same order, with -0 equal to 0 and NaN below everything."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    return jnp.where(jnp.isnan(x), _INT_MIN, bits ^ ((bits >> 31) & _INT_MAX))


def _from_order(order: Array) -> Array:
    """The float32 of that order. A positive subnormal becomes the least normal number: hardware that flushes subnormals
    would compare it as 0, and keep the zeros that it stands above."""
    order = jnp.where((order > 0) & (order < _LEAST_NORMAL), _LEAST_NORMAL, order)
    return lax.bitcast_convert_type(order ^ ((order >> 31) & _INT_MAX), jnp.float32)


def _weights(logits: Array, peak: Array, params: SampleParams) -> Array:
    """[S, V]: relative probabilities at the row's temperature, 1 for the most likely. At 0 only that one weighs."""
    peak, temperature = peak[:, None], params.temperature[:, None]
    soft = jnp.exp((logits - peak) / jnp.where(temperature > 0, temperature, 1.0))
    return jnp.where(temperature > 0, soft, (logits == peak).astype(jnp.float32))


def _kept_weights(logits: Array, peak: Array, kept: Array, params: SampleParams) -> Array:
    """`_weights`, 0 for tokens that min_p or the least kept logit `kept` [S] rules out."""
    weights = _weights(logits, peak, params)
    return jnp.where((logits >= kept[:, None]) & (weights >= params.min_p[:, None]), weights, 0.0)


# Stage 6: the draw.


def _draw(logits: Array, peak: Array, params: SampleParams) -> Array:
    weights = _kept_weights(logits, peak, kept_from(logits, peak, params), params)
    noise = exponential_noise(params.seed_hi, params.seed_lo, params.position, logits.shape[1])
    return _first_max(weights / jnp.where(params.temperature[:, None] > 0, noise, 1.0))[1]


def exponential_noise(seed_hi: Array, seed_lo: Array, position: Array, vocab_size: int) -> Array:
    """[S, V] draws of Exp(1), each a function of its seed [S] uint32 x 2, position [S] and token id.

    The bits are those of `jax.random.bits(fold_in(key, position), V)`, written out because jax.random keeps the rounds
    of threefry in a loop on CPU, which is eight times slower. 31 bits give e = -log1p(-u) its resolution where small,
    which is where the winners are: with the 23 bits of `jax.random.exponential`, ties favour low ids in a large V.
    """
    key = _threefry(seed_hi, seed_lo, jnp.zeros_like(seed_hi), position.astype(jnp.uint32))
    token = lax.broadcasted_iota(jnp.uint32, (1, vocab_size), 1)
    upper, lower = _threefry(key[0][:, None], key[1][:, None], jnp.zeros_like(token), token)
    u = (((upper ^ lower) >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5) * np.float32(2**-31)
    return -jnp.log1p(-jnp.minimum(u, np.float32(1 - 2**-24)))


def _threefry(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011) of the counter (x0, x1), all uint32."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for i in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x0 = x0 + x1
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        x0, x1 = x0 + keys[(i + 1) % 3], x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1

"""Whether a stream that took another token did so where two tokens were as good as each other.

A stream that is taken up again computes the keys and values of its last tokens in one pass, where they had been
computed one by one: the same sums in another order. The noise of a token depends on (seed, position) alone, so a token
changes only where the two best, with their noise, lie within that rounding.
"""

import math
from typing import Any

import httpx
import jax.numpy as jnp

from serving.engine.sampling import exponential_noise

ROUNDING = 1e-4  # of a log-probability with its noise


async def compare(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], expected: list[int], got: list[int]
) -> tuple[int, list[int]]:
    """The ties at which `got` took the other token, and the positions at which it is not what its seed draws: after a
    tie that is what the other token leads to. `body` drew `expected`, at temperature 1, undisturbed."""
    ties = 0
    while expected != got:
        most = max(len(got), len(expected))
        places = [at for at in range(most) if got[at : at + 1] != expected[at : at + 1]]
        first = places[0]
        if first >= min(len(got), len(expected)):
            return ties, places
        before = [*body["prompt"], *expected[:first]]
        if not await _is_tie(http, path, body["seed"], before, expected[first], got[first]):
            return ties, places
        ties += 1
        kept = got[: first + 1]
        expected = kept + await _drawn(http, path, body, kept)
    return ties, []


async def _drawn(http: httpx.AsyncClient, path: str, body: dict[str, Any], kept: list[int]) -> list[int]:
    """What follows `kept` by the same seed."""
    left = body["max_tokens"] - len(kept)
    if not left:
        return []
    reply = await http.post(path, json={**body, "prompt": [*body["prompt"], *kept], "max_tokens": left})
    return reply.raise_for_status().json()["choices"][0]["token_ids"]


async def _is_tie(http: httpx.AsyncClient, path: str, seed: int, before: list[int], one: int, other: int) -> bool:
    high, low = (jnp.array([half], jnp.uint32) for half in (seed >> 32, seed & 0xFFFFFFFF))
    noise = exponential_noise(high, low, jnp.array([len(before)]), max(one, other) + 1)[0]
    scores = [await _logprob(http, path, before, token) - math.log(noise[token]) for token in (one, other)]
    return abs(scores[0] - scores[1]) < ROUNDING


async def _logprob(http: httpx.AsyncClient, path: str, before: list[int], token: int) -> float:
    body = {"prompt": [*before, token], "max_tokens": 0, "prompt_logprobs": 0}
    reply = await http.post(path, json=body)
    (entry,) = reply.raise_for_status().json()["choices"][0]["prompt_logprobs"][-1].values()
    return entry["logprob"]

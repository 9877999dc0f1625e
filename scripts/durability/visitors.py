"""Clients as they come in a day, compressed: who reads to the end, who leaves, who comes back, who cancels.

Each visit is chosen by a seed, so that two runs are alike. What a visit finds wrong is counted and named.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from scripts.durability.stream_reader import Received, read_once, read_through

PATH = "/v1/completions"
SHARED_PROMPT = [3, 5, 7, 11, 13, 17, 19, 23] * 4  # a prefix that many share

Visit = Callable[[httpx.AsyncClient, dict[str, Any], random.Random], Awaitable[None]]


class VisitError(Exception):
    """A visit that did not go as it must."""


async def read_whole(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    reply = await http.post(PATH, json=body)
    expect(reply.status_code == 200, f"whole: {reply.status_code}")
    expect(reply.json()["usage"]["completion_tokens"] == body["max_tokens"], "whole: tokens")


async def read_stream(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    reply = await http.post(PATH, json={**body, "stream": True})
    expect(reply.text.count("data: [DONE]") == 1, "stream: not one end")


async def leave(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    async with http.stream("POST", PATH, json={**body, "stream": True}) as reply:
        async for _ in reply.aiter_text():
            if chance.random() < 0.5:
                return


async def read_durable(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    _check_durable(await read_through(http, PATH, body), body)


async def come_back(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    got = Received()
    while not got.ended and got.failure is None:
        await read_once(http, PATH, body, got, most=chance.randint(1, 8))
    _check_durable(got, body)


async def read_together(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    """Three more readers join a stream that has begun."""
    first = Received()
    await read_once(http, PATH, body, first, most=1)
    expect(bool(first.stream_id), f"together: {first.failure}")
    others = [Received(stream_id=first.stream_id) for _ in range(3)]
    await asyncio.gather(*(read_once(http, PATH, body, other) for other in others))
    for other in others:
        _check_durable(other, body)
    expect(all(other.events == others[0].events for other in others), "together: readers differ")


async def cancel(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    got = Received()
    await read_once(http, PATH, body, got, most=1)
    reply = await http.delete(f"/v1/streams/{got.stream_id}")
    expect(reply.status_code == 200, f"cancel: {reply.status_code}")


async def ask_nonsense(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    reply = await http.post(PATH, json={**body, "top_p": 3.0, "stream": True, "durable": True})
    expect(reply.status_code == 400, f"nonsense: {reply.status_code}")


VISITS: tuple[Visit, ...] = (
    read_whole, read_stream, leave, read_durable, come_back, read_together, cancel, ask_nonsense
)  # fmt: skip


async def visit_all(
    http: httpx.AsyncClient,
    visits: int,
    *,
    at_once: int,
    tokens: int,
    seed: int = 0,
    kinds: Sequence[Visit] = VISITS,
) -> Counter[str]:
    """So many visits, at most `at_once` at a time, one after the other without a pause. What happened, by name; a
    server that does not answer is a visit's failure."""
    happened: Counter[str] = Counter()
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        kind = kinds[number % len(kinds)]
        prompt = [
            *SHARED_PROMPT[: chance.randint(1, 32)],
            *(chance.randint(0, 99) for _ in range(chance.randint(1, 40))),
        ]
        body = {
            "prompt": prompt,
            "max_tokens": chance.randint(1, tokens),
            "seed": number,
            "temperature": 1.0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        try:
            await kind(http, body, chance)
            happened[kind.__name__] += 1
        except VisitError as error:
            happened[f"failed: {error}"] += 1
        except (TimeoutError, httpx.HTTPError) as error:
            happened[f"failed: {kind.__name__}: {type(error).__name__}"] += 1
        finally:
            places.release()

    async with asyncio.TaskGroup() as running:
        for number in range(visits):
            await places.acquire()
            running.create_task(one(number))
    return happened


def failures(happened: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in happened.items() if name.startswith("failed")}


def _check_durable(got: Received, body: dict[str, Any]) -> None:
    expect(got.failure is None and got.ended, f"durable: {got.failure}")
    expect(got.repeated == got.missing == 0, "durable: events repeated or missing")
    expect(len(got.token_ids) == body["max_tokens"], "durable: tokens")


def expect(true: bool, otherwise: str) -> None:
    if not true:
        raise VisitError(otherwise)

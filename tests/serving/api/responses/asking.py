"""Asking for responses, without a socket."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.serving.api.conftest import MODEL, Api, data_of


def told(text: str) -> list[Any]:
    """The events of a stream."""
    return [json.loads(data_of(frame)) for frame in text.split("\n\n") if "data: " in frame]


async def create(api: Api, said: Any = "hi", **fields: Any) -> Any:
    reply = await api.post("/v1/responses", {"model": MODEL, "input": said, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stream(api: Api, said: Any = "hi", **fields: Any) -> list[Any]:
    reply = await api.post("/v1/responses", {"model": MODEL, "input": said, **fields, "stream": True})
    assert reply.status_code == 200, reply.text
    return told(reply.text)


async def refused(api: Api, status: int, **fields: Any) -> Any:
    reply = await api.post("/v1/responses", {"input": "hi", **fields})
    assert reply.status_code == status, reply.text
    return reply.json()["error"]


async def ask(
    api: Api, method: str, path: str, status: int = 200, *, json: Any = None, headers: Mapping[str, str] | None = None
) -> Any:
    async with api.client() as client:
        reply = await client.request(method, path, json=json, headers=headers)
    assert reply.status_code == status, reply.text
    return reply.json()


def prompt(api: Api, number: int = -1) -> str:
    """What the model read."""
    return api.service.generator.detokenize(list(api.engine.requests[number].prompt_token_ids))


def texts(outputs: Sequence[Any]) -> list[str]:
    return [item["content"][0]["text"] for item in outputs if item["type"] == "message"]

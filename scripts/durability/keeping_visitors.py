"""Clients of what a server keeps: conversations, tools, memory, files, batches, vector stores; and clients over gRPC.

Each takes away in the end what it has made, so that a server at rest holds nothing of them.
"""

import asyncio
import json
import random
from typing import Any

import httpx

from scripts.durability.visitors import VISITS, Visit, VisitError, expect
from serving.client import Client, ClientError

POLL_SECONDS = 0.2
PATIENCE = 300.0
TURNS = 3
TEXT = "The flying shuttle was patented by John Kay in 1733. A warp runs along the cloth, a weft across it."


async def talk(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    """A conversation of a few turns, remembered for its user, exported by nobody, then deleted with its memory."""
    user = f"visitor-{chance.getrandbits(64):x}"
    made = await _json(http.post("/v1/conversations", json={"user": user}))
    for turn in range(TURNS):
        asked = {**_asked(f"Turn {turn}: name a colour.", body), "conversation": made["id"], "user": user}
        reply = await _json(http.post("/v1/responses", json=asked))
        expect(reply["status"] in ("completed", "incomplete"), f"talk: {reply['status']}")
    items = await _json(http.get(f"/v1/conversations/{made['id']}/items"))
    expect(len(items["data"]) >= 2 * TURNS, "talk: items")
    await _json(http.delete(f"/v1/conversations/{made['id']}"))
    await _json(http.delete("/v1/memory", params={"user": user}))


async def use_a_tool(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    """A sum that the server's own calculator is asked for."""
    question = f"What is {chance.randint(10, 99)} + {chance.randint(10, 99)}?"
    asked = {**_asked(question, {**body, "max_tokens": 48}), "tools": [{"type": "calculator"}], "temperature": 0}
    reply = await _json(http.post("/v1/responses", json=asked))
    expect(bool(reply["output"]), "tool: no output")
    await _json(http.delete(f"/v1/responses/{reply['id']}"))


async def run_a_batch(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5, number], **few}}
        for few in ({"max_tokens": min(body["max_tokens"], 8)},)
        for number in range(4)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = await _json(http.post("/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"}))
    asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = await _json(http.post("/v1/batches", json=asked))
    async with asyncio.timeout(PATIENCE):
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(POLL_SECONDS)
            batch = await _json(http.get(f"/v1/batches/{batch['id']}"))
    expect(batch["request_counts"]["completed"] == len(lines), f"batch: {batch['request_counts']}")
    for name in (file["id"], batch["output_file_id"]):
        await _json(http.delete(f"/v1/files/{name}"))


async def search_a_store(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
    content = TEXT.encode()
    file = await _json(http.post("/v1/files", files={"file": ("a.txt", content)}, data={"purpose": "assistants"}))
    store = await _json(http.post("/v1/vector_stores", json={"file_ids": [file["id"]]}))
    async with asyncio.timeout(PATIENCE):
        while store["status"] != "completed":
            await asyncio.sleep(POLL_SECONDS)
            store = await _json(http.get(f"/v1/vector_stores/{store['id']}"))
    found = await _json(http.post(f"/v1/vector_stores/{store['id']}/search", json={"query": "Who patented it?"}))
    expect(len(found["data"]) == 1, "store: nothing found")
    await _json(http.delete(f"/v1/vector_stores/{store['id']}"))
    await _json(http.delete(f"/v1/files/{file['id']}"))


def over_grpc(address: str) -> Visit:
    """A stream over gRPC that is read to its end, or left."""

    async def visit(http: httpx.AsyncClient, body: dict[str, Any], chance: random.Random) -> None:
        try:
            async with (
                Client(address) as client,
                client.stream(body["prompt"], max_tokens=body["max_tokens"], timeout=PATIENCE) as chunks,
            ):
                async for _ in chunks:
                    if chance.random() < 0.1:
                        return
        except ClientError as error:
            raise VisitError(f"grpc: {error.reason}") from error

    visit.__name__ = "over_grpc"
    return visit


def every_visit(grpc_address: str, *, stores: bool) -> tuple[Visit, ...]:
    """`stores`: the server has an encoder, and so vector stores."""
    return (*VISITS, talk, use_a_tool, run_a_batch, over_grpc(grpc_address), *((search_a_store,) if stores else ()))


def _asked(question: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"model": "weft-demo", "input": question, "max_output_tokens": max(body["max_tokens"], 16)}


async def _json(asked: Any) -> dict[str, Any]:
    reply = await asked
    expect(
        reply.status_code == 200, f"{reply.request.method} {reply.request.url.path.split('/')[2]}: {reply.text[:200]}"
    )
    return reply.json()

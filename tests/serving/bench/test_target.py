"""One request to an OpenAI-compatible server, over a client whose replies the test wrote."""

import asyncio
import json
from typing import Any, cast

import pytest

from serving.bench.load import drive
from serving.bench.stream_client import OnEvent, Reply, StreamClient
from serving.bench.target import Measured, Target
from serving.bench.workload import Item

OK = Reply(200, b"")
ITEM = Item(0.0, (5, 6, 7), "five six seven", 4)


class ScriptedClient:
    def __init__(self, *events: Any, reply: Reply | OSError = OK) -> None:
        self.events = events
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []

    async def post(self, path: str, body: bytes, on_event: OnEvent) -> Reply:
        self.paths.append(path)
        self.bodies.append(json.loads(body))
        for at, event in enumerate(self.events):
            on_event(float(at), event if isinstance(event, bytes) else json.dumps(event).encode())
        if isinstance(self.reply, OSError):
            raise self.reply
        return self.reply


async def run(client: ScriptedClient, *, text_prompts: bool = False) -> Measured:
    return await Target(cast(StreamClient, client), "m", text_prompts=text_prompts).run(ITEM)


def text(value: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": value, "finish_reason": finish}]}


async def test_a_completion_sends_token_ids_and_forbids_an_early_end() -> None:
    client = ScriptedClient(
        text("a"), text("b", "length"), {"choices": [], "usage": {"completion_tokens": 4}}, b"[DONE]"
    )
    found = await run(client)
    assert client.paths == ["/v1/completions"]
    body = client.bodies[0]
    assert (body["prompt"], body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == ([5, 6, 7], 4, 4, True)
    assert (found.error, found.tokens, found.chunks) == (None, 4, [0.0, 1.0])


async def test_extra_fields_are_added_over_the_benchmarks_own() -> None:
    client = ScriptedClient(text("a", "length"))
    target = Target(cast(StreamClient, client), "m", text_prompts=False, extra_body={"temperature": 1, "top_k": 5})
    await target.run(ITEM)
    assert (client.bodies[0]["temperature"], client.bodies[0]["top_k"]) == (1, 5)
    assert client.bodies[0]["max_tokens"] == 4


async def test_a_chat_sends_words_and_nothing_beyond_openais_fields() -> None:
    chunks = [
        {"choices": [{"delta": d, "finish_reason": f}]}
        for d, f in (({"role": "assistant", "content": ""}, None), ({"content": "a"}, None), ({}, "stop"))
    ]
    client = ScriptedClient(*chunks)
    found = await run(client, text_prompts=True)
    assert client.paths == ["/v1/chat/completions"]
    assert client.bodies[0]["messages"] == [{"role": "user", "content": "five six seven"}]
    assert not {"ignore_eos", "min_tokens", "prompt"} & client.bodies[0].keys()
    assert (found.error, found.tokens, found.chunks) == (None, 1, [1.0])


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
async def test_reasoning_is_text_by_either_of_its_names(name: str) -> None:
    chunks = [
        {"choices": [{"delta": delta, "finish_reason": end}]} for delta, end in (({name: "a"}, None), ({}, "stop"))
    ]
    found = await run(ScriptedClient(*chunks), text_prompts=True)
    assert (found.tokens, found.chunks) == (1, [0.0])


async def test_a_reply_that_takes_too_long_is_told_with_the_flag_for_it() -> None:
    class Silent(ScriptedClient):
        async def post(self, path: str, body: bytes, on_event: OnEvent) -> Reply:
            await asyncio.Event().wait()
            return OK

    target = Target(cast(StreamClient, Silent()), "m", text_prompts=False, timeout_seconds=0.0)
    found = await target.run(ITEM)
    assert (found.error, found.detail) == ("TimeoutError", "the reply had not ended after 0 s (--timeout)")


async def test_half_a_character_counts_as_a_token_and_an_empty_end_does_not() -> None:
    found = await run(ScriptedClient(text(""), text("é"), text("", "length")))
    assert (found.tokens, found.chunks) == (2, [0.0, 1.0])


async def test_cached_tokens_are_read_where_the_server_tells_them() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
    found = await run(ScriptedClient({**text("a", "stop"), "usage": usage}))
    assert (found.prompt_tokens, found.cached_tokens) == (9, 8)


@pytest.mark.parametrize(
    ("client", "kind", "detail"),
    [
        (ScriptedClient(reply=Reply(503, b'{"error": {"message": "full"}}')), "HTTP 503", "full"),
        (ScriptedClient(reply=Reply(502, b"<html>")), "HTTP 502", "<html>"),
        (ScriptedClient(text("a"), reply=ConnectionResetError("gone")), "ConnectionResetError", "gone"),
        (ScriptedClient(text("a")), "cut off", "without a finish_reason"),
        (ScriptedClient({"error": {"message": "died", "code": "engine_failed"}}), "engine_failed", "died"),
        (ScriptedClient(b"{nonsense"), "malformed", ""),
    ],
    ids=["refused", "not JSON", "reset", "cut", "error event", "malformed"],
)
async def test_each_failure_is_counted_by_its_kind(client: ScriptedClient, kind: str, detail: str) -> None:
    found = await run(client)
    assert found.error == kind
    assert detail in found.detail


async def test_never_more_than_the_concurrency_is_open() -> None:
    open_now = most = 0

    async def send(item: Item) -> Measured:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(3):
            await asyncio.sleep(0)
        open_now -= 1
        return Measured(0.0)

    run = await drive(send, [ITEM] * 20, 4)
    assert len(run.measured) == 20
    assert most == 4


async def test_without_a_bound_all_are_open_at_once() -> None:
    together = asyncio.Barrier(12)

    async def send(item: Item) -> Measured:
        await together.wait()
        return Measured(0.0)

    async with asyncio.timeout(120):
        assert len((await drive(send, [ITEM] * 12, None)).measured) == 12

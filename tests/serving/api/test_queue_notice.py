import json
from typing import Any

import httpx
import pytest

from serving.api.service import StreamLimits
from tests.fakes.engine import Script
from tests.serving.api.conftest import ApiMaker, chat_body
from tests.serving.api.listening import listening

PATH = "/v1/chat/completions"
RESPONSE = {"input": "hello", "stream": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, chat_body(stream=True)),
        (PATH, chat_body(stream=True, durable=True)),
        ("/v1/responses", RESPONSE),
        ("/v1/responses", RESPONSE | {"background": True}),
    ],
)
async def test_a_stream_that_waits_says_where_it_stands_to_who_asks_for_it(
    make_api: ApiMaker, path: str, body: dict[str, Any]
) -> None:
    held = Script(token_ids=make_api.ids("never"), hold_after=0)
    api = make_api(held, streams=StreamLimits(heartbeat_seconds=0.02))
    async with listening(api.app) as port, httpx.AsyncClient(timeout=120) as client:
        url = f"http://127.0.0.1:{port}{path}"
        for headers, begins in (({"weft-queue": "show"}, ": queue position=0 waited="), ({}, ": keep-alive")):
            async with client.stream("POST", url, json=body, headers=headers) as reply:
                async for line in reply.aiter_lines():
                    if not line.startswith(":"):
                        continue
                    assert line.startswith((": keep-alive", begins))  # nobody waits who is not admitted yet
                    if line.startswith(begins):
                        break


async def test_a_stream_with_notices_is_the_same_stream(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    replies = [
        await api.post(PATH, chat_body(stream=True), headers=headers) for headers in ({}, {"weft-queue": "show"})
    ]
    texts = []
    for reply in replies:
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        texts.append("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks))
    assert texts == ["hello", "hello"]

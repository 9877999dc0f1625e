import asyncio
import json

import httpx
import pytest

from tests.serving.api.conftest import WINDOW, Api, ApiMaker, text_body, text_of
from tests.serving.api.gated_engine import GatedEngine
from tests.serving.api.malformed_bodies import VALID, Malformed, malformed_bodies

COUNT = 1000
SEED = 20261121
HANGS = 180.0  # seconds after which a test that fails stops waiting


def _complaint(case: Malformed, reply: httpx.Response) -> str | None:
    """What is wrong with the answer to a malformed request."""
    if not 400 <= reply.status_code < 500:
        return f"status {reply.status_code}: {reply.text[:200]}"
    error = reply.json().get("error", {})
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return f"not the error shape: {reply.text[:200]}"
    if not error["code"] or error["type"] != "invalid_request_error":
        return f"no code or another type: {error}"
    if case.names_param and not error["param"]:
        return f"names no param: {error}"
    if len(reply.content) > 2000:
        return f"an error of {len(reply.content)} bytes"
    return None


async def _tried(client: httpx.AsyncClient, case: Malformed) -> str | None:
    headers = {"content-type": "application/json"}
    try:
        async with asyncio.timeout(HANGS):
            return _complaint(case, await client.post(case.path, content=case.content, headers=headers))
    except TimeoutError:
        return "hangs"


async def test_a_thousand_malformed_requests_get_a_clear_4xx_and_disturb_nobody(make_api: ApiMaker) -> None:
    said = "undisturbed " * (COUNT // 12 + 1)
    engine = GatedEngine([make_api.says(said)], vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    api = make_api(engine=engine)
    stream = asyncio.ensure_future(api.events("/v1/completions", text_body(max_tokens=len(said) + 1)))
    await engine.started.wait()
    complaints: list[str] = []
    async with api.client() as client:
        for case in malformed_bodies(COUNT, SEED):
            if complaint := await _tried(client, case):
                complaints.append(f"{case.kind} {case.path} {case.content[:300]!r}: {complaint}")
            engine.let(1)
    engine.let(len(said))
    assert not complaints, f"{len(complaints)} of {COUNT}:\n" + "\n".join(complaints[:10])
    assert text_of(await stream) == said
    assert len(engine.requests) == 1
    assert api.service.slots.open == 0


def test_the_generator_makes_what_it_says() -> None:
    """The same bodies for a seed, of every kind, hardly any of them twice."""
    cases = list(malformed_bodies(COUNT, SEED))
    assert cases == list(malformed_bodies(COUNT, SEED))
    assert len({case.kind for case in cases}) == 9
    assert len({case.content for case in cases}) > COUNT * 0.9


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_bodies_that_are_broken_are_otherwise_right(make_api: ApiMaker, path: str) -> None:
    api: Api = make_api(make_api.says("x"))
    async with api.client() as client:
        headers = {"content-type": "application/json"}
        reply = await client.post(path, content=json.dumps(VALID[path]), headers=headers)
    assert reply.status_code == 200, reply.text

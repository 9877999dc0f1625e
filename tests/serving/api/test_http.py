import json
import re
import subprocess
import sys

import httpx
import pytest

from serving.api.front import Front
from serving.api.gate import Gate
from serving.config import ServerConfig
from serving.errors import EngineUnavailableError, OverloadedError
from serving.gateway.gateway import Gateway
from serving.generation.chat_format import ChatFormat
from serving.generation.tokenizer import Tokenizer
from serving.observability.metrics import Metrics
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, WINDOW, ApiMaker, chat_body, text_body

CHAT = "/v1/chat/completions"


def _error(reply: httpx.Response) -> dict[str, object]:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def test_the_api_process_does_not_load_jax_or_torch() -> None:
    heavy = ("jax", "jaxlib", "flax", "torch", "transformers", "orbax")
    code = f"import sys, serving.api.http, serving.api.server; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


async def test_the_served_model_is_listed_and_found_by_its_name(make_api: ApiMaker) -> None:
    api = make_api()
    listed = (await api.get("/v1/models")).json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", WINDOW)
    assert (await api.get(f"/v1/models/{MODEL}")).json() == card


@pytest.mark.parametrize("name", ["other", "weft", "weft/scripted/x", ""])
async def test_another_model_is_not_found(make_api: ApiMaker, name: str) -> None:
    api = make_api()
    for reply in (await api.get(f"/v1/models/{name}"), await api.post(CHAT, {**chat_body(), "model": name})):
        assert reply.status_code == 404
        assert _error(reply)["code"] == "model_not_found"


async def test_a_body_without_a_model_means_the_served_one(make_api: ApiMaker) -> None:
    body = chat_body()
    del body["model"]
    reply = await make_api(make_api.says("x")).post(CHAT, body)
    assert reply.json()["model"] == MODEL


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
        ("POST", "/v1/embeddings", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", "/health/live", 405, "method_not_allowed"),
        ("GET", "/static/../../errors.py", 404, "unknown_url"),
        ("GET", "/static/nothing.js", 404, "unknown_url"),
    ],
)
async def test_wrong_paths_and_methods_are_answered_in_the_error_shape(
    make_api: ApiMaker, method: str, path: str, status: int, code: str
) -> None:
    async with make_api().client() as client:
        reply = await client.request(method, path)
    assert reply.status_code == status
    assert _error(reply)["code"] == code
    assert (status == 405) == ("allow" in reply.headers)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"content-type": "text/plain"}, "content-type application/json"),
        ({"content-type": "application/x-www-form-urlencoded"}, "content-type application/json"),
        ({"content-type": ""}, "content-type application/json"),
        ({"content-type": "application/json; charset=latin-1"}, "UTF-8"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "compressed"),
        ({"content-type": "application/json", "content-encoding": "identity, br"}, "compressed"),
    ],
)
async def test_a_body_of_another_media_type_or_compressed_is_refused(
    make_api: ApiMaker, headers: dict[str, str], says: str
) -> None:
    async with make_api().client() as client:
        reply = await client.post(CHAT, content=json.dumps(chat_body()), headers=headers)
    assert reply.status_code == 415
    assert says in str(_error(reply)["message"])


async def test_json_with_a_charset_is_read(make_api: ApiMaker) -> None:
    async with make_api(make_api.says("x")).client() as client:
        headers = {"content-type": 'Application/JSON; charset="UTF-8"'}
        reply = await client.post(CHAT, content=json.dumps(chat_body()), headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_not_read_to_its_end(make_api: ApiMaker, declared: bool) -> None:
    taken: list[int] = []

    async def endless():
        for i in range(1000):
            taken.append(i)
            yield b" " * 512

    api = make_api(max_body_bytes=1024)
    async with api.client() as client:
        headers = {"content-type": "application/json"} | ({"content-length": "512000"} if declared else {})
        reply = await client.post(CHAT, content=endless(), headers=headers)
    assert reply.status_code == 413
    assert _error(reply)["code"] == "payload_too_large"
    assert len(taken) <= 4


async def test_a_body_of_exactly_the_limit_is_read(make_api: ApiMaker) -> None:
    content = json.dumps(chat_body()).encode()
    api = make_api(make_api.says("x"), max_body_bytes=len(content))
    async with api.client() as client:
        headers = {"content-type": "application/json"}
        assert (await client.post(CHAT, content=content, headers=headers)).status_code == 200
        assert (await client.post(CHAT, content=content + b" ", headers=headers)).status_code == 413


async def test_every_reply_has_an_id_of_the_servers_own(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    replies = [await api.post(CHAT, chat_body(), headers={"x-request-id": "mine"}) for _ in range(2)]
    replies += [await api.get("/nothing"), await api.post(CHAT, {"model": 1})]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(set(ids)) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", made) for made in ids)
    assert replies[0].json()["id"] == f"chatcmpl-{ids[0]}"
    assert [reply.headers.get("x-client-request-id") for reply in replies] == ["mine", "mine", None, None]
    assert [request.request_id for request in api.engine.requests] == ids[:2]


@pytest.mark.parametrize("theirs", ["x" * 65, "a b", "", "caf\u00e9"])
async def test_a_clients_id_is_echoed_only_where_it_is_short_and_printable(make_api: ApiMaker, theirs: str) -> None:
    async with make_api().client() as client:
        reply = await client.get("/health/live", headers=[(b"x-request-id", theirs.encode("utf-8"))])
    assert reply.status_code == 200
    assert "x-client-request-id" not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raised", "status", "code", "retry_after"),
    [
        (OverloadedError("the queue is full", retry_after=6.2), 503, "overloaded", "7"),
        (EngineUnavailableError("the engine restarts", code="engine_lost"), 503, "engine_lost", "5"),
        (ValueError("a secret"), 500, "internal_error", None),
    ],
)
async def test_what_the_engine_raises_at_once_has_a_status_streamed_or_not(
    make_api: ApiMaker, stream: bool, raised: Exception, status: int, code: str, retry_after: str | None
) -> None:
    api = make_api(Script(token_ids=[], raises=raised))
    reply = await api.post(CHAT, chat_body(stream=stream))
    assert reply.status_code == status
    assert _error(reply)["code"] == code
    assert reply.headers.get("retry-after") == retry_after
    assert "secret" not in reply.text


async def test_more_streams_than_the_limit_are_refused_with_a_time_to_wait(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"), max_streams=4)
    with api.service.slots.take(3, api.service.metrics.open_streams, param="n"):
        assert (await api.post(CHAT, chat_body())).status_code == 200
        for stream in (False, True):
            reply = await api.post(CHAT, chat_body(n=2, stream=stream))
            assert reply.status_code == 503
            assert _error(reply)["code"] == "too_many_streams"
            assert int(reply.headers["retry-after"]) >= 1
    assert (await api.post(CHAT, chat_body(n=2))).status_code == 200
    never = await api.post("/v1/completions", text_body(prompt=["a", "b", "c"], n=2))
    assert (never.status_code, _error(never)["param"]) == (400, "n")
    never = await api.post("/v1/completions", text_body(prompt=["a", "b", "c", "d", "e"]))
    assert (never.status_code, _error(never)["param"]) == (400, "prompt")
    assert api.service.slots.open == 0


async def test_a_failure_after_the_response_began_sends_nothing_more() -> None:
    sent: list[str] = []

    async def broken(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("a secret")

    async def send(message) -> None:
        sent.append(message["type"])

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    await Front(broken, Metrics("m"), Gate(ServerConfig()), Gateway())(scope, receive, send)
    assert sent == ["http.response.start"]


async def test_the_page_is_served_beside_the_api(make_api: ApiMaker) -> None:
    reply = await make_api().get("/")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "x-request-id" in reply.headers


async def test_a_prompt_is_tokenized_and_comes_back(make_api: ApiMaker) -> None:
    api = make_api()
    reply = (await api.post("/tokenize", {"model": MODEL, "prompt": "hé", "return_token_strs": True})).json()
    assert reply["count"] == 3 == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == WINDOW
    back = await api.post("/detokenize", {"model": MODEL, "tokens": reply["tokens"]})
    assert back.json() == {"prompt": "hé"}


async def test_messages_are_tokenized_as_they_would_be_generated_from(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    body = chat_body(messages=[{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}])
    await api.post(CHAT, body)
    counted = (await api.post("/tokenize", body)).json()
    assert tuple(counted["tokens"]) == api.engine.requests[0].prompt_token_ids


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"prompt": "x" * 200_000}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1] * (WINDOW + 1)}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    make_api: ApiMaker, path: str, body: dict[str, object], param: str
) -> None:
    reply = await make_api().post(path, body)
    assert reply.status_code == 400, reply.text
    assert _error(reply)["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", CHAT])
async def test_tools_are_counted_only_where_chat_would_take_them(tokenizer: Tokenizer, path: str) -> None:
    other = ChatFormat({"default": "{{ tools }}{{ messages[0].content }}"}, {}, source="of another call format")
    reply = await ApiMaker(tokenizer, other)().post(
        path, chat_body(tools=[{"type": "function", "function": {"name": "f"}}])
    )
    other.close()
    assert reply.status_code == 400
    assert (_error(reply)["param"], _error(reply)["code"]) == ("tools", "unsupported")

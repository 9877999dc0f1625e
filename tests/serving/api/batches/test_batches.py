"""Batches through the openai SDK, over a real socket: each line once, whatever happens."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai.types import Batch

from serving.access import AccessConfig, AuthConfig, TenantConfig, TierConfig
from serving.api.batches.batch import Batch as StoredBatch
from serving.api.batches.batch_store import BatchStore
from serving.api.batches.batch_work import BatchWork
from serving.api.files.file_store import FileStore
from serving.config import FilesConfig
from serving.engine.request import GenerateRequest, Priority
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope, anonymous
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.api.conftest import MODEL, WINDOW, Api, ApiMaker
from tests.serving.api.listening import listening

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def _sdk(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(api.app) as port,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120
        ) as client,
    ):
        yield client


def _line(name: str, *, url: str = COMPLETIONS, method: str = "POST", **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": method, "url": url, "body": {"model": MODEL, **body}}


def _jsonl(lines: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def _begin(client: openai.AsyncOpenAI, lines: Sequence[Any], endpoint: Any = COMPLETIONS) -> Batch:
    file = await client.files.create(file=("requests.jsonl", _jsonl(lines)), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


async def _ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        await asyncio.sleep(0)
        batch = await client.batches.retrieve(batch.id)
    return batch


async def _records(client: openai.AsyncOpenAI, file_id: str | None) -> list[Any]:
    assert file_id is not None
    return [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]


def _counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


async def test_lines_are_answered_and_refused_each_for_itself(make_api: ApiMaker, tmp_path: Path) -> None:
    api = make_api(make_api.says("fine"), files=FilesConfig(folder=tmp_path / "kept"))
    messages = [{"role": "user", "content": "hi"}]
    lines = [
        _line("a", url=CHAT, messages=messages, max_tokens=20),
        _line("b", url=CHAT, messages=messages, temperature=9),
        _line("c", url=CHAT, messages=messages, priority="interactive"),
        _line("d", url=CHAT, messages=messages, stream=True),
    ]
    async with _sdk(api) as client:
        batch = await _begin(client, lines, CHAT)
        assert (batch.status, batch.completion_window) == ("validating", "24h")
        batch = await _ended(client, batch)
        assert (batch.status, _counts(batch)) == ("completed", (4, 2, 2))
        good = await _records(client, batch.output_file_id)
        bad = await _records(client, batch.error_file_id)
        assert (await client.batches.list()).data[0].id == batch.id
        assert batch.output_file_id in [file.id async for file in await client.files.list()]
    assert [record["custom_id"] for record in good] == ["a", "c"]
    assert good[0]["response"]["status_code"] == 200
    assert good[0]["response"]["body"]["choices"][0]["message"]["content"] == "fine"
    assert [record["response"]["body"]["error"]["param"] for record in bad] == ["temperature", "stream"]
    assert {request.priority for request in api.engine.requests} == {Priority.BATCH}


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([_line("a", prompt="x"), "nonsense"], "invalid_json", 2),
        ([_line("a", prompt="x"), _line("a", prompt="y")], "duplicate_custom_id", 2),
        ([_line("a", prompt="x", url=CHAT)], "invalid_value", 1),
        ([_line("a", method="GET")], "invalid_value", 1),
        ([_line("")], "invalid_value", 1),
        ([{"custom_id": "a"}], "missing_required_parameter", 1),
        ([_line(str(i)) for i in range(5)], "too_many_requests", 5),
        ([], "empty_file", None),
    ],
)
async def test_a_file_that_is_no_batch_runs_no_line(
    make_api: ApiMaker, tmp_path: Path, lines: list[Any], code: str, number: int | None
) -> None:
    api = make_api(files=FilesConfig(folder=tmp_path / "kept", max_batch_requests=4))
    async with _sdk(api) as client:
        batch = await _ended(client, await _begin(client, lines))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, number)
    assert api.engine.requests == []


async def test_a_server_that_ended_leaves_the_rest_of_the_lines_to_the_next(make_api: ApiMaker, tmp_path: Path) -> None:
    folder = FilesConfig(folder=tmp_path / "kept", concurrent_requests=2)
    lines = [_line(name, prompt=name, max_tokens=5) for name in "abcdef"]

    def held(request: GenerateRequest) -> Script:
        stuck = request.prompt_token_ids == tuple(make_api.ids("b"))
        return Script(token_ids=make_api.ids("x"), hold_after=0) if stuck else make_api.says("old")

    first = make_api(engine=_engine(make_api, held), files=folder)
    async with _sdk(first) as client:
        batch = await _begin(client, lines)
        while _counts(batch) != (6, 5, 0):
            batch = await client.batches.retrieve(batch.id)
        with pytest.raises(openai.ConflictError, match="cancel that first"):
            await client.files.delete(batch.input_file_id)
    second = make_api(make_api.says("new"), files=folder)
    async with _sdk(second) as client:
        batch = await _ended(client, batch)
        records = await _records(client, batch.output_file_id)
        await client.files.delete(batch.input_file_id)
    assert [request.prompt_token_ids for request in second.engine.requests] == [tuple(make_api.ids("b"))]
    texts = {record["custom_id"]: record["response"]["body"]["choices"][0]["text"] for record in records}
    assert texts == {name: "new" if name == "b" else "old" for name in "abcdef"}
    assert (batch.status, batch.error_file_id) == ("completed", None)


async def test_a_batch_is_cancelled_and_keeps_what_was_done(make_api: ApiMaker, tmp_path: Path) -> None:
    def held(request: GenerateRequest) -> Script:
        stuck = request.prompt_token_ids == tuple(make_api.ids("b"))
        return Script(token_ids=make_api.ids("x"), hold_after=0) if stuck else make_api.says("fine")

    api = make_api(engine=_engine(make_api, held), files=FilesConfig(folder=tmp_path / "kept"))
    async with _sdk(api) as client:
        batch = await _begin(client, [_line(name, prompt=name) for name in "ab"])
        while _counts(batch) != (2, 1, 0):
            batch = await client.batches.retrieve(batch.id)
        batch = await client.batches.cancel(batch.id)
        assert batch.status in ("cancelling", "cancelled")
        batch = await _ended(client, batch)
        records = await _records(client, batch.output_file_id)
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
    assert batch.status == "cancelled"
    assert [record["custom_id"] for record in records] == ["a"]
    assert len(api.engine.closed) == 1


async def test_a_line_runs_within_the_limits_of_the_tenant_that_sent_it(make_api: ApiMaker, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite")
    access = AccessConfig(
        auth=AuthConfig(keys=Path("k")),
        tiers={"small": TierConfig(output_tokens=10)},
        tenants={"acme": TenantConfig(tier="small")},
    )
    gateway = Gateway(access, identity=Identity(access, keys=keys))
    api = make_api(make_api.says("fine"), gateway=gateway, files=FilesConfig(folder=tmp_path / "kept"))
    secret = keys.create("acme", [Scope.INFERENCE]).text
    async with _sdk(api) as nobody:
        with pytest.raises(openai.AuthenticationError):
            await nobody.files.list()
        client = nobody.with_options(api_key=secret)
        lines = [_line("a", prompt="x", max_tokens=10), _line("b", prompt="x", max_tokens=11)]
        batch = await _ended(client, await _begin(client, lines))
        (bad,) = await _records(client, batch.error_file_id)
    assert (bad["custom_id"], bad["response"]["body"]["error"]["code"]) == ("b", "tier_output_exceeded")
    assert [(request.tenant, request.priority) for request in api.engine.requests] == [("acme", Priority.BATCH)]


async def test_a_tenant_at_its_limit_does_not_hold_up_anothers_batch(make_api: ApiMaker, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite")
    access = AccessConfig(
        auth=AuthConfig(keys=Path("k")),
        tiers={"once": TierConfig(requests_per_minute=1), "free": TierConfig()},
        tenants={"slow": TenantConfig(tier="once"), "fast": TenantConfig(tier="free")},
    )
    gateway = Gateway(access, identity=Identity(access, keys=keys), now=lambda: 0.0)  # its minute never ends
    files = FilesConfig(folder=tmp_path / "kept", concurrent_requests=1)
    api = make_api(make_api.says("fine"), gateway=gateway, files=files)
    slow, fast = (keys.create(name, [Scope.INFERENCE]).text for name in ("slow", "fast"))
    lines = [_line(name, prompt="x", max_tokens=5) for name in "ab"]
    async with _sdk(api) as client:
        waiting = client.with_options(api_key=slow)
        held = await _begin(waiting, lines)
        while _counts(held) != (2, 1, 0):
            held = await waiting.batches.retrieve(held.id)
        free = client.with_options(api_key=fast)
        assert _counts(await _ended(free, await _begin(free, lines))) == (2, 2, 0)
        assert _counts(await waiting.batches.retrieve(held.id)) == (2, 1, 0)


async def test_what_an_expired_batch_did_not_run_is_told(make_api: ApiMaker, tmp_path: Path) -> None:
    config = FilesConfig(folder=tmp_path / "kept")
    api = make_api(make_api.says("fine"))
    files = FileStore(config, tmp_path / "kept")
    store = BatchStore(files.facts, 1)
    file = await files.add("t", "x", "batch", [_jsonl([_line("a", prompt="a"), _line("b", prompt="b")])])
    principal = msgspec.msgpack.encode(anonymous())
    made = StoredBatch(
        id="batch_1",
        tenant="t",
        principal=principal,
        endpoint=COMPLETIONS,
        input_file_id=file.id,
        created_at=0,
        expires_at=100,
        status="in_progress",
        total=2,
    )
    await store.add(made)
    await store.record(made.id, 1, b'{"custom_id": "a"}', good=True)
    late = replace(api.service, now=lambda: 101.0)
    one = asyncio.Semaphore(1)
    work = BatchWork(late, store, files, made, max_lines=10, max_line_bytes=1000, slots=one, max_lines_begun=1)
    await work.run()
    batch, counts = await store.find("t", made.id)
    assert (batch.status, counts) == ("expired", (1, 1))
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    assert files.path(batch.output_file_id).read_bytes() == b'{"custom_id": "a"}\n'
    (missed,) = files.path(batch.error_file_id).read_text().splitlines()
    assert (json.loads(missed)["custom_id"], json.loads(missed)["error"]["code"]) == ("b", "batch_expired")
    assert api.engine.requests == []


async def test_output_files_expire_after_their_own_creation(make_api: ApiMaker, tmp_path: Path) -> None:
    api = make_api(make_api.says("fine"), files=FilesConfig(folder=tmp_path / "kept"))
    lines = [_line("good", prompt="x", max_tokens=5), _line("bad", prompt="x", max_tokens=5, top_p=3)]
    async with _sdk(api) as client:
        file = await client.files.create(file=("requests.jsonl", _jsonl(lines)), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=COMPLETIONS,
            completion_window="24h",
            output_expires_after={"anchor": "created_at", "seconds": 7200},
        )
        batch = await _ended(client, batch)
        assert file.expires_at is None
        for name in (batch.output_file_id, batch.error_file_id):
            assert name is not None
            made = await client.files.retrieve(name)
            assert made.expires_at == made.created_at + 7200


async def test_open_batches_are_bounded_and_what_they_ask_for_is_checked(make_api: ApiMaker, tmp_path: Path) -> None:
    api = make_api(files=FilesConfig(folder=tmp_path / "kept", max_tenant_batches=1))
    async with api.client() as client:
        made = await client.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"})
        other = await client.post("/v1/files", files={"file": b"{}"}, data={"purpose": "user_data"})
    body = {"input_file_id": made.json()["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    for change, param in (
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": other.json()["id"]}, "input_file_id"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "completed_at", "seconds": 3600}}, "output_expires_after.anchor"),
    ):
        assert (await api.post("/v1/batches", body | change)).json()["error"]["param"] == param
    assert (await api.post("/v1/batches", body)).status_code == 200  # nothing runs it: the server is not started
    assert (await api.post("/v1/batches", body)).json()["error"]["code"] == "open_batches"


def _engine(make_api: ApiMaker, script_for: Any) -> ScriptedEngine:
    return ScriptedEngine(script_for=script_for, vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)

"""The document is true: every route is in it, what it calls right is answered, and no request made of it breaks the
server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from starlette.routing import Route

from serving.api.completion_body import CompletionBody
from serving.api.openapi.document import build_document, walked
from serving.api.openapi.operations import OPERATIONS
from serving.api.openapi.schemas import body_schemas
from serving.config import FilesConfig
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.sandbox import Sandbox
from serving.settings.memory import MemoryConfig
from serving.settings.moderation import JudgeConfig, ModerationConfig
from serving.settings.retrieval import RetrievalConfig
from tests.fakes.embedder import tiny_text_embedder
from tests.serving.api.conftest import Api, ApiMaker

BODIES = {key: operation for key, operation in OPERATIONS.items() if operation.example is not None}
SENT = sorted(key for key in OPERATIONS if key != ("GET", "/v1/socket"))
CASES_OF_EACH = 8
RULES = ModerationConfig(judges={"rules": JudgeConfig(kind="rules")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def api(make_api: ApiMaker, folder: Path) -> Iterator[Api]:
    memories = Memories(MemoryConfig(path=folder / "memory.sqlite"))
    made = make_api(
        make_api.says("fine"),
        files=FilesConfig(folder=folder),
        moderation=RULES,
        encoder=tiny_text_embedder(folder),
        retrieval=RetrievalConfig(folder=folder / "index"),
        memories=memories,
    )
    made.service.toolbox.registry.add(CodeInterpreter(Sandbox()))
    yield made
    memories.close()


def _validator(document: dict[str, Any], schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


async def _document(api: Api) -> dict[str, Any]:
    reply = await api.get("/openapi.json")
    assert reply.status_code == 200
    return reply.json()


async def test_every_route_is_in_the_document_and_nothing_else(api: Api, make_api: ApiMaker) -> None:
    document = await _document(api)
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    routes = {(method.lower(), path.replace(":path}", "}")) for method, path in walked(api.app.routes)}
    assert described == routes
    assert set(walked(api.app.routes)) == set(OPERATIONS)
    assert "/v1/batches" not in (await _document(make_api()))["paths"]  # that server has no folder for them


async def test_a_route_without_a_description_is_found(api: Api) -> None:
    async def nothing(_: Any) -> None: ...

    with pytest.raises(KeyError, match="/v1/new"):
        build_document([*api.app.routes, Route("/v1/new", nothing, methods=["PUT"])])


async def test_schemas_are_those_of_the_structs_that_validate(api: Api) -> None:
    document = await _document(api)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for operation in BODIES.values():
        assert operation.body is not None
        schema = document["components"]["schemas"][operation.body.__name__]
        assert set(schema["properties"]) == {*operation.body.__struct_fields__, *operation.body.refused}
        assert schema["additionalProperties"] is False
    refused = body_schemas([CompletionBody])["CompletionBody"]["properties"]["suffix"]
    assert refused["enum"] == ["", None]


@pytest.mark.parametrize("key", sorted(BODIES))
async def test_examples_follow_their_schema_and_are_answered_by_it(api: Api, key: tuple[str, str]) -> None:
    document = await _document(api)
    told = document["paths"][key[1]]["post"]
    example = told["requestBody"]["content"]["application/json"]
    _validator(document, example["schema"]).validate(example["example"])
    body = dict(example["example"])
    if "input_file_id" in body:
        async with api.client() as client:
            made = await client.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"})
        body["input_file_id"] = made.json()["id"]
    reply = await api.post(key[1], body)
    assert reply.status_code == 200, reply.text
    _validator(document, told["responses"]["200"]["content"]["application/json"]["schema"]).validate(reply.json())


@pytest.mark.parametrize(
    ("key", "mode"),
    [*((key, GenerationMode.POSITIVE) for key in SENT), *((key, GenerationMode.NEGATIVE) for key in sorted(BODIES))],
    ids=lambda value: value.value if isinstance(value, GenerationMode) else " ".join(value),
)
def test_no_request_made_of_the_document_breaks_the_server(
    api: Api, key: tuple[str, str], mode: GenerationMode
) -> None:
    document = build_document(api.app.routes)
    method, path = key[0], key[1].replace(":path}", "}")
    operation = schemathesis.openapi.from_dict(document)[path][method]
    told = document["paths"][path][method.lower()]["responses"]

    @settings(
        max_examples=CASES_OF_EACH,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def check(case: schemathesis.Case) -> None:
        reply = asyncio.run(_sent(api, case))
        assert reply.status_code < 500, (reply.status_code, reply.text)
        content = told.get(str(reply.status_code), told["4XX"]).get("content", {})
        media = reply.headers.get("content-type", "").partition(";")[0]
        assert media in content or "*/*" in content, media
        if media == "application/json":
            _validator(document, content[media]["schema"]).validate(reply.json())

    check()


async def _sent(api: Api, case: schemathesis.Case) -> httpx.Response:
    """As schemathesis would send it, but into the application."""
    made = case.as_transport_kwargs(base_url="http://localhost")
    made.pop("cookies", None)
    ready = requests.Request(**made).prepare()
    async with api.client() as client:
        headers = {name: value for name, value in ready.headers.items() if isinstance(value, str)}
        return await client.request(ready.method or "GET", ready.url or "", content=ready.body, headers=headers)

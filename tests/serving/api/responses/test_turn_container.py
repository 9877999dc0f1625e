"""What a turn's programs leave behind reaches the next program, the answer, and the client."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.access import AccessConfig, AuthConfig, StorageConfig, TierConfig
from serving.config import FilesConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits
from tests.fakes.engine import Script
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.responses.asking import prompt, told

AUTO = {"type": "auto"}
PNG = b"\x89PNG\r\n\x1a\n\x00"


def call(program: str) -> str:
    arguments = {"name": "code_interpreter", "arguments": {"code": program}}
    return f"<tool_call>{json.dumps(arguments)}</tool_call>"


def write(name: str, content: str) -> str:
    return call(f"open({name!r}, 'w').write({content!r})")


class Bench:
    """A server whose model runs programs and then says something; two tenants, one with little room."""

    def __init__(self, make_api: ApiMaker, folder: Path, *says: str, keeps_files: bool = True) -> None:
        self.keys = KeyStore(folder / "keys.sqlite")
        tiers = {"default": TierConfig(storage=StorageConfig(file_bytes=1000))}
        access = AccessConfig(auth=AuthConfig(keys=folder / "keys.sqlite"), tiers=tiers)
        gateway = Gateway(access, identity=Identity(access, keys=self.keys))
        files = FilesConfig(folder=folder / "files") if keeps_files else None
        scripts: list[Script] = [make_api.says(text, chunk=7) for text in says]
        self.api = make_api(*scripts, gateway=gateway, files=files)
        self.api.service.toolbox.registry.add(CodeInterpreter(Sandbox(SandboxLimits(seconds=60))), seconds=120)
        self._headers: dict[str, dict[str, str]] = {}

    def headers(self, tenant: str = "acme") -> dict[str, str]:
        if tenant not in self._headers:
            key = self.keys.create(tenant, [Scope.INFERENCE]).text
            self._headers[tenant] = {"authorization": f"Bearer {key}"}
        return self._headers[tenant]

    async def ask(self, container: Any = AUTO, status: int = 200, **fields: Any) -> Any:
        tool = {"type": "code_interpreter", "container": container}
        body = {"input": "hi", "tools": [tool], "include": ["code_interpreter_call.outputs"], **fields}
        reply = await self.api.post("/v1/responses", body, headers=self.headers())
        assert reply.status_code == status, reply.text
        if fields.get("stream"):
            return told(reply.text)
        return reply.json() if status == 200 else reply.json()["error"]

    async def get(self, path: str, status: int = 200, tenant: str = "acme") -> Any:
        async with self.api.client() as client:
            reply = await client.get(f"/v1/containers/{path}", headers=self.headers(tenant))
        assert reply.status_code == status, reply.text
        return reply

    async def post(self, path: str, **options: Any) -> Any:
        async with self.api.client() as client:
            reply = await client.post(f"/v1{path}", headers=self.headers(), **options)
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture
def bench_of(make_api: ApiMaker, tmp_path: Path) -> Callable[..., Bench]:
    return lambda *says, **options: Bench(make_api, tmp_path, *says, **options)


def calls_of(made: Any) -> list[Any]:
    return [item for item in made["output"] if item["type"] == "code_interpreter_call"]


def files_of(item: Any) -> list[Any]:
    return item["files"]


async def test_a_file_that_a_program_writes_is_named_listed_cited_and_read(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(write("total.csv", "a,b"), "It is in [total.csv](sandbox:/mnt/data/total.csv).")
    events = await bench.ask(stream=True)
    made = events[-1]["response"]
    (done,) = calls_of(made)
    (file,) = files_of(done)
    assert done["outputs"] == [{"type": "logs", "logs": "files: total.csv"}]
    assert (file["filename"], file["bytes"], file["mime_type"]) == ("total.csv", 3, "application/octet-stream")
    container = done["container_id"]
    assert (await bench.get(container)).json()["status"] == "running"
    (listed,) = (await bench.get(f"{container}/files")).json()["data"]
    assert (listed["id"], listed["path"], listed["source"]) == (file["file_id"], "/mnt/data/total.csv", "assistant")
    content = await bench.get(f"{container}/files/{file['file_id']}/content")
    assert content.content == b"a,b"
    assert content.headers["content-disposition"] == "attachment; filename*=UTF-8''total.csv"
    assert content.headers["x-content-type-options"] == "nosniff"
    (part,) = made["output"][-1]["content"]
    cited = [part["text"][one["start_index"] : one["end_index"]] for one in part["annotations"]]
    assert cited == ["total.csv", "sandbox:/mnt/data/total.csv"]
    assert {(one["type"], one["container_id"], one["file_id"]) for one in part["annotations"]} == {
        ("container_file_citation", container, file["file_id"])
    }
    added = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert [event["annotation"] for event in added] == part["annotations"]
    assert [event["annotation_index"] for event in added] == [0, 1]


async def test_the_next_program_finds_the_file_in_the_turn_and_in_later_ones(bench_of: Callable[..., Bench]) -> None:
    add = call("open('n.txt', 'a').write('x'); print(len(open('n.txt').read()))")
    bench = bench_of(add, add, "Two.", add, "Three of n.txt.")
    first = await bench.ask()
    one, two = calls_of(first)
    assert one["container_id"] == two["container_id"]
    assert [item["outputs"][0]["logs"].split()[0] for item in (one, two)] == ["1", "2"]
    assert files_of(one)[0]["file_id"] == files_of(two)[0]["file_id"]  # its content is another, its id the same
    second = await bench.ask(previous_response_id=first["id"])
    (three,) = calls_of(second)
    assert three["outputs"][0]["logs"].split()[0] == "3"
    assert three["container_id"] == one["container_id"]
    assert len(second["output"][-1]["content"][0]["annotations"]) == 1


async def test_a_container_by_its_id_has_what_a_client_put_there(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(call("print(open('in.csv').read()); import os; os.remove('in.csv')"), "Done.")
    made = await bench.post("/containers", json={"name": "mine"})
    path = f"/containers/{made['id']}/files"
    assert (await bench.post(path, files={"file": ("in.csv", b"1,2")}))["source"] == "user"
    (done,) = calls_of(await bench.ask(made["id"]))
    assert done["container_id"] == made["id"]
    assert done["outputs"] == [{"type": "logs", "logs": "1,2"}]
    assert "Files that are there: in.csv." in prompt(bench.api, 0)
    assert (await bench.get(f"{made['id']}/files")).json()["data"] == []


async def test_anothers_container_is_not_found_before_a_model_is_asked(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(write("a", "x"), "Done.")
    (done,) = calls_of(await bench.ask())
    container, (file,) = done["container_id"], files_of(done)
    for path in (container, f"{container}/files", f"{container}/files/{file['file_id']}/content"):
        error = (await bench.get(path, 404, "else")).json()["error"]
        assert error["code"] == "container_not_found"
    asked = len(bench.api.engine.requests)
    error = await bench.ask("cntr_nobodys", 404)
    assert (error["code"], error["param"]) == ("container_not_found", "tools[0].container")
    assert len(bench.api.engine.requests) == asked


async def test_what_finds_no_room_is_told_to_the_model_and_the_client(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(call("open('a', 'w').write('x' * 900); open('b', 'w').write('x' * 900)"), "Done.")
    (done,) = calls_of(await bench.ask())
    logs = done["outputs"][0]["logs"]
    assert logs.startswith("files: a\nnot kept: b: ")
    assert "may have 1000 bytes together, and have 900" in logs
    assert "there is no room for 900 more" in prompt(bench.api, 1)
    assert [file["filename"] for file in files_of(done)] == ["a"]
    async with bench.api.client() as client:  # one room for both
        form = {"files": {"file": ("c", b"x" * 101)}, "data": {"purpose": "assistants"}}
        refused = await client.post("/v1/files", headers=bench.headers(), **form)
    assert refused.json()["error"]["code"] == "file_bytes"


async def test_a_container_that_is_gone_is_said_to_be_and_followed_by_a_new_one(
    bench_of: Callable[..., Bench],
) -> None:
    bench = bench_of(write("a", "x"), "Done.", call("import os; print(os.listdir())"), "Done.")
    first = await bench.ask()
    gone = calls_of(first)[0]["container_id"]
    async with bench.api.client() as client:
        assert (await client.delete(f"/v1/containers/{gone}", headers=bench.headers())).json()["deleted"]
    second = await bench.ask(previous_response_id=first["id"])
    (done,) = calls_of(second)
    assert done["outputs"][0]["logs"] == "[]"
    assert done["container_id"] != gone
    (notice,) = second["notices"]
    assert (notice["kind"], notice["facts"]) == ("container_lost", {"container_id": gone})
    assert "The files of earlier programs are gone." in prompt(bench.api, 2)
    await bench.get(gone, 404)


async def test_what_an_image_is_tells_its_content(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(call(f"open('a.txt', 'wb').write({PNG!r}); open('b.png', 'w').write('<svg>')"), "Done.")
    (done,) = calls_of(await bench.ask())
    kinds = {file["filename"]: file["mime_type"] for file in files_of(done)}
    assert kinds == {"a.txt": "image/png", "b.png": "application/octet-stream"}


async def test_without_a_folder_files_stay_in_the_turn(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(write("a", "x"), call("print(open('a').read())"), "See a.", keeps_files=False)
    made = await bench.ask()
    one, two = calls_of(made)
    assert (one["outputs"], two["outputs"][0]["logs"]) == ([{"type": "logs", "logs": "files: a"}], "x")
    assert made["output"][-1]["content"][0]["annotations"] == []
    assert "keeps no files" in (await bench.ask("cntr_1", 400))["message"]

"""Files of the caller beside the programs of a turn."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.access import AccessConfig, AuthConfig
from serving.config import FilesConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.responses.asking import prompt

LIMITS = SandboxLimits(seconds=60, given_files=2, given_bytes=100)
PROGRAM = "print(open('numbers.csv').read() + open('numbers-2.csv').read())"
CALL = f"<tool_call>{json.dumps({'name': 'code_interpreter', 'arguments': {'code': PROGRAM}})}</tool_call>"


class Bench:
    """A server with files, whose model runs one program and then answers; two tenants."""

    def __init__(self, make_api: ApiMaker, folder: Path, *, keeps_files: bool = True) -> None:
        keys = KeyStore(folder / "keys.sqlite")
        access = AccessConfig(auth=AuthConfig(keys=folder / "keys.sqlite"))
        gateway = Gateway(access, identity=Identity(access, keys=keys))
        files = FilesConfig(folder=folder / "files") if keeps_files else None
        self.api = make_api(make_api.says(CALL), make_api.says("Done."), gateway=gateway, files=files)
        self.api.service.toolbox.registry.add(CodeInterpreter(Sandbox(LIMITS)), seconds=120)
        self.keys = {
            tenant: {"authorization": f"Bearer {keys.create(tenant, [Scope.INFERENCE]).text}"}
            for tenant in ("acme", "else")
        }

    async def keep(self, name: str, content: bytes, tenant: str = "acme") -> str:
        async with self.api.client() as client:
            reply = await client.post(
                "/v1/files", files={"file": (name, content)}, data={"purpose": "assistants"}, headers=self.keys[tenant]
            )
        assert reply.status_code == 200, reply.text
        return reply.json()["id"]

    async def ask(self, ids: list[Any] | None, status: int = 200) -> Any:
        container = {"type": "auto"} if ids is None else {"type": "auto", "file_ids": ids}
        tool = {"type": "code_interpreter", "container": container}
        body = {"input": "hi", "tools": [tool], "include": ["code_interpreter_call.outputs"]}
        reply = await self.api.post("/v1/responses", body, headers=self.keys["acme"])
        assert reply.status_code == status, reply.text
        return reply.json() if status == 200 else reply.json()["error"]


@pytest.fixture
def bench(make_api: ApiMaker, tmp_path: Path) -> Bench:
    return Bench(make_api, tmp_path)


async def test_a_program_reads_the_files_that_the_request_names_and_the_model_is_told_of_them(bench: Bench) -> None:
    ids = [await bench.keep("numbers.csv", b"1,2"), await bench.keep("numbers.csv", b"3,4")]
    made = await bench.ask([*ids, ids[0]])
    (call, _) = made["output"]
    assert call["outputs"] == [{"type": "logs", "logs": "1,2" + "3,4"}]
    assert made["tools"][0]["container"] == {"type": "auto", "file_ids": [*ids, ids[0]]}
    assert "Files that it can read there: numbers.csv; numbers-2.csv." in prompt(bench.api, 0)


async def test_a_request_that_names_none_is_as_it_was(bench: Bench) -> None:
    made = await bench.ask(None)
    assert "No such file" in made["output"][0]["outputs"][0]["logs"]
    assert made["tools"][0]["container"] == {"type": "auto"}
    assert "can read there" not in prompt(bench.api, 0)


async def test_a_file_that_is_not_the_tenants_is_not_found_by_name(bench: Bench) -> None:
    ours, theirs = await bench.keep("a", b"1"), await bench.keep("b", b"2", "else")
    for name in ("file-nobody", theirs):
        error = await bench.ask([ours, name], 404)
        assert (error["code"], error["param"]) == ("file_not_found", "tools[0].container.file_ids[1]")
        assert name in error["message"]
    assert bench.api.engine.requests == []  # no model was asked


async def test_files_have_bounds(bench: Bench) -> None:
    ids = [await bench.keep(str(number), b"x" * 60) for number in range(3)]
    assert "may name 2 files, not 3" in (await bench.ask(ids, 400))["message"]
    assert "120 bytes together, and may have 100" in (await bench.ask(ids[:2], 400))["message"]
    assert (await bench.ask([7], 400))["param"] == "tools[0].container.file_ids[0]"


async def test_a_file_that_is_deleted_while_the_turn_runs_is_told_to_the_model(bench: Bench) -> None:
    name = await bench.keep("numbers.csv", b"1")
    bench.api.app.state.kept_data.files.path(name).unlink()
    made = await bench.ask([name])
    assert "the file 'numbers.csv' was deleted" in made["output"][0]["outputs"][0]["logs"]


async def test_a_server_that_keeps_no_files_says_so(make_api: ApiMaker, tmp_path: Path) -> None:
    bench = Bench(make_api, tmp_path, keeps_files=False)
    error = await bench.ask(["file-1"], 400)
    assert "keeps no files" in error["message"]

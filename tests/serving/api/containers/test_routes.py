"""/v1/containers, as the `openai` SDK calls it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from serving.config import FilesConfig
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits
from tests.serving.api.conftest import MODEL, Api, ApiMaker
from tests.serving.api.listening import listening

PROGRAM = "open('total.txt', 'w').write(open('numbers.csv').read() + ',3')"
CALL = f"<tool_call>{json.dumps({'name': 'code_interpreter', 'arguments': {'code': PROGRAM}})}</tool_call>"


@pytest.fixture
def api(make_api: ApiMaker, tmp_path: Path) -> Api:
    made = make_api(
        make_api.says(CALL),
        make_api.says("See total.txt."),
        make_api.says("So."),
        files=FilesConfig(folder=tmp_path / "files"),
    )
    made.service.toolbox.registry.add(CodeInterpreter(Sandbox(SandboxLimits(seconds=60))), seconds=120)
    return made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(api.app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=99) as made,
    ):
        yield made


async def test_a_container_of_a_clients_own_over_a_whole_turn(client: openai.AsyncOpenAI) -> None:
    numbers = await client.files.create(file=("numbers.csv", b"1,2"), purpose="assistants")
    expiry = openai.types.container_create_params.ExpiresAfter(anchor="last_active_at", minutes=5)
    made = await client.containers.create(name="sums", file_ids=[numbers.id], expires_after=expiry)
    assert made.expires_after is not None
    assert (made.name, made.status, made.expires_after.minutes) == ("sums", "running", 5)
    response = await client.responses.create(
        model=MODEL,
        input="hi",
        tools=[{"type": "code_interpreter", "container": made.id}],
        include=["code_interpreter_call.outputs"],
    )
    call, message = response.output
    assert call.type == "code_interpreter_call"
    assert message.type == "message"
    assert call.container_id == made.id
    assert [output.type for output in call.outputs or ()] == ["logs"]
    assert call.model_extra is not None
    assert [file["filename"] for file in call.model_extra["files"]] == ["total.txt"]
    (part,) = message.content
    assert part.type == "output_text"
    (citation,) = part.annotations
    assert citation.type == "container_file_citation"
    content = await client.containers.files.content.retrieve(citation.file_id, container_id=citation.container_id)
    assert content.read() == b"1,2,3"
    said = [{"role": "user", "content": "hi"}, *response.output, {"role": "user", "content": "again"}]
    again = await client.responses.create(model=MODEL, input=said)  # a client that keeps its conversation itself
    assert again.status == "completed"
    names = [file.path async for file in client.containers.files.list(made.id, order="asc")]
    assert names == ["/mnt/data/numbers.csv", "/mnt/data/total.txt"]
    assert (await client.containers.retrieve(made.id)).id == made.id
    await client.containers.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.containers.retrieve(made.id)


async def test_files_are_added_read_page_by_page_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.containers.create(name="c")
    known = await client.files.create(file=("../x y;.csv", b"1"), purpose="assistants")
    copied = await client.containers.files.create(made.id, file_id=known.id)
    added = await client.containers.files.create(made.id, file=("b.csv", b"22"))
    assert (copied.path, copied.source, added.bytes) == ("/mnt/data/x y_.csv", "user", 2)
    seen = [file.id async for file in client.containers.files.list(made.id, limit=1)]
    assert seen == [added.id, copied.id]
    with pytest.raises(openai.NotFoundError, match="no file 'cfile_gone'"):
        await client.containers.files.list(made.id, after="cfile_gone")
    assert (await client.containers.files.retrieve(added.id, container_id=made.id)).id == added.id
    await client.containers.files.delete(added.id, container_id=made.id)
    with pytest.raises(openai.NotFoundError, match="no file"):
        await client.containers.files.content.retrieve(added.id, container_id=made.id)


async def test_containers_are_listed_by_name_and_page_by_page(client: openai.AsyncOpenAI) -> None:
    made = [(await client.containers.create(name=name)).id for name in ("a", "b", "a")]
    assert [one.id async for one in client.containers.list(limit=1, order="asc")] == made
    assert [one.id async for one in client.containers.list(name="a")] == [made[2], made[0]]
    with pytest.raises(openai.NotFoundError, match="no container 'cntr_gone'"):
        await client.containers.list(after="cntr_gone")


async def test_what_a_container_cannot_be_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"expires_after.minutes must be in 1 .. 20, not 21") as refused:
        await client.containers.create(name="c", expires_after={"anchor": "last_active_at", "minutes": 21})
    assert refused.value.param == "expires_after.minutes"
    with pytest.raises(openai.BadRequestError, match="memory_limit is not supported"):
        await client.containers.create(name="c", memory_limit="4g")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.containers.create(name="c", file_ids=["file-nobody"])
    assert missing.value.param == "file_ids[0]"
    await client.containers.create(name="c", network_policy={"type": "disabled"})


async def test_a_server_without_programs_makes_no_containers(make_api: ApiMaker, tmp_path: Path) -> None:
    api = make_api(make_api.says("x"), files=FilesConfig(folder=tmp_path))
    reply = await api.post("/v1/containers", {"name": "c"})
    assert reply.status_code == 400
    assert "runs no programs" in reply.json()["error"]["message"]

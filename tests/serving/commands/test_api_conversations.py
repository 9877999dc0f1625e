"""An API process that is killed in the middle of an answer: its conversation is whole, and goes on in the next one."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.child_process import ChildProcess
from serving.engine.request import FinishReason, GenerateRequest
from serving.engine.server import EngineServer
from serving.lifeline import Status
from tests.fakes.byte_checkpoint import write_byte_checkpoint
from tests.fakes.engine import Script, ScriptedEngine

PATIENCE = 300.0  # seconds; only a broken test waits that long
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
WORDS = [*b"Once upon a time"]  # of this checkpoint's tokens, some text


class Processes:
    """API processes, one after another, over one engine and one file of conversations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holds = True
        self.engine = ScriptedEngine(script_for=self._script, max_model_len=1024)
        self.children: list[ChildProcess] = []

    def _script(self, request: GenerateRequest) -> Script:
        return Script(token_ids=WORDS, hold_after=5 if self.holds else None, finish=FinishReason.STOP)

    @property
    def socket(self) -> Path:
        return self.folder / "private" / "engine.sock"

    async def api(self) -> str:
        """The address of a new one."""
        statuses: asyncio.Queue[Status] = asyncio.Queue()
        lines: list[str] = []
        file = self.folder / "deployment.toml"
        file.write_text(
            'name = "bytes"\n[model]\ncheckpoint = "tiny"\nchat_template = "chat.jinja"\n[server]\nport = 0\n'
            '[conversations]\npath = "conversations.sqlite"\n'
        )
        command = [sys.executable, "-m", "serving", "api", str(file), f"--socket={self.socket}"]
        child = await ChildProcess.start(command, lines.append, statuses.put_nowait)
        waits = {asyncio.ensure_future(statuses.get()), asyncio.ensure_future(child.wait())}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        status = done.pop().result()
        assert isinstance(status, Status), lines
        self.children.append(child)
        async with httpx.AsyncClient(base_url=status.url, timeout=PATIENCE) as http:
            while (await http.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        return status.url


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    write_byte_checkpoint(tmp_path / "tiny")
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    made = Processes(tmp_path)
    server = EngineServer(made.engine, made.socket)
    await server.start()
    yield made
    for child in made.children:
        child.kill()
        await child.wait()
    await server.stop()


async def until_delta(reply: httpx.Response) -> str:
    """The response's id, once some of its answer is there."""
    name = ""
    async for line in reply.aiter_lines():
        event: Any = json.loads(line[len("data: ") :]) if line.startswith("data: ") else {}
        name = event.get("response", {}).get("id", name)
        if event.get("type") == "response.output_text.delta":
            return name
    raise AssertionError("the stream ended without an answer")


async def test_a_process_killed_in_mid_answer_leaves_a_conversation_that_goes_on(processes: Processes) -> None:
    async with httpx.AsyncClient(base_url=await processes.api(), timeout=PATIENCE) as http:
        conversation = (await http.post("/v1/conversations", json={})).json()["id"]
        body = {"input": "a story", "conversation": conversation, "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as reply:
            name = await until_delta(reply)
            processes.children[0].kill()
            await processes.children[0].wait()
    processes.holds = False
    async with httpx.AsyncClient(base_url=await processes.api(), timeout=PATIENCE) as http:
        while (found := (await http.get(f"/v1/responses/{name}")).json())["status"] == "in_progress":
            await asyncio.sleep(0.1)
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        assert (await http.get(f"/v1/conversations/{conversation}/items")).json()["data"] == []
        again = await http.post("/v1/responses", json={"input": "a story", "conversation": conversation})
        assert again.json()["status"] == "completed", again.text
        items = (await http.get(f"/v1/conversations/{conversation}/items?order=asc")).json()["data"]
        assert [item["role"] for item in items] == ["user", "assistant"]
        assert len(processes.engine.requests) == 2

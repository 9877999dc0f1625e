"""A turn with the demo model, over the engine of a real `weft serve`."""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.api.containers.turn_workspace import TurnWorkspace
from serving.api.files.file_store import FileStore
from serving.app import build_generator
from serving.config import FilesConfig, load_deployment
from serving.engine.remote import RemoteEngine
from serving.generation.generator import Generator
from serving.generation.request import GenerationOptions, TextDelta, TextRequest
from serving.orchestrator.tools.calculator import Calculator
from serving.orchestrator.tools.code_interpreter import WORKSPACE, CodeInterpreter
from serving.orchestrator.tools.registry import ToolRegistry
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits
from serving.orchestrator.turn import TurnRunner
from serving.orchestrator.turn_events import CallReady, ResultReady, TextOut, TurnEnded, TurnEvent
from serving.orchestrator.turn_request import TurnRequest
from serving.settings.containers import ContainersConfig
from tests.e2e.conftest import ROOT, ServedDemo


@pytest.fixture
async def generator(served_demo: ServedDemo) -> AsyncIterator[Generator]:
    command = Path(f"/proc/{served_demo.child('api')}/cmdline").read_text(encoding="utf-8").split("\0")
    engine = RemoteEngine(Path(command[command.index("--socket") + 1]), timeout_seconds=240)
    made = build_generator(load_deployment(ROOT / "configs" / "deployments" / "demo.toml"), engine)
    yield made
    await engine.close()
    if made.chat_format is not None:
        made.chat_format.close()


class OneProgram(CodeInterpreter):
    """The demo model writes no programs: its call is held to this one by its schema."""

    @property
    def parameters(self) -> dict[str, Any]:
        code = {"enum": ["print(6 * 7); open('made.txt', 'w').write('by the model')"]}
        return {"type": "object", "properties": {"code": code}, "required": ["code"], "additionalProperties": False}


async def played(generator: Generator, question: str, **options: Any) -> list[TurnEvent]:
    async def generate(request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        async with aclosing(generator.stream(await generator.prepare(request))) as deltas:
            async for delta in deltas:
                yield delta

    tools = ToolRegistry([Calculator(), OneProgram(Sandbox(SandboxLimits(seconds=120)))])
    turn = TurnRequest(
        request_id=f"turn-{question}",
        messages=[{"role": "user", "content": question}],
        options=GenerationOptions(temperature=0, max_tokens=200),
        **options,
    )
    async with aclosing(TurnRunner(generator, generate, tools).run(turn)) as events:
        return [event async for event in events]


def results_of(events: list[TurnEvent]) -> list[str]:
    return [event.result.text for event in events if isinstance(event, ResultReady)]


async def test_the_model_calculates_by_its_tool(generator: Generator) -> None:
    events = await played(generator, "What is 27 + 58?", server_tools={"calculator": {}})
    call = next(event.call for event in events if isinstance(event, CallReady))
    assert json.loads(call.arguments) == {"expression": "27 + 58"}
    assert results_of(events) == ["85"]
    assert "85" in "".join(event.text for event in events if isinstance(event, TextOut))
    last = events[-1]
    assert isinstance(last, TurnEnded)
    assert last.reason == "stop"
    assert last.usage.cached_tokens > 0, "the second answer's prompt begins with the first's"


async def test_code_that_the_model_is_made_to_write_runs_in_the_sandbox_and_its_file_is_kept(
    generator: Generator, tmp_path: Path
) -> None:
    files = FileStore(FilesConfig(), tmp_path)
    containers = ContainerStore(files, tmp_path, ContainersConfig(), time.time)
    workspace = TurnWorkspace(containers, ContainerOwner(tenant="t"), "cntr_1", None)
    events = await played(
        generator,
        "Run it.",
        server_tools={"code_interpreter": {WORKSPACE: workspace}},
        tool_choice="required",
        named_tool="code_interpreter",
    )
    result = next(event.result for event in events if isinstance(event, ResultReady))
    assert (result.facts["outcome"], result.facts["stdout"]) == ("ended", "42\n"), result
    (kept,) = await containers.files("t", "cntr_1")
    assert (kept.name, containers.path(kept).read_bytes()) == ("made.txt", b"by the model")
    files.facts.close()
    assert isinstance(events[-1], TurnEnded)

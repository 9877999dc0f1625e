"""The calls of the libraries that the tests install work on a server over a scripted engine."""

import asyncio
from pathlib import Path

import pytest

from scripts.check_clients import NOT_INSTALLED, Outcome, outcomes
from scripts.clients import anthropic_calls, openai_calls
from scripts.clients.call import Call, Target
from serving.config import FilesConfig
from serving.engine.request import GenerateRequest
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.api.conftest import MODEL, WINDOW, ApiMaker, chat_format, make_api, tokenizer
from tests.serving.api.listening import listening

__all__ = ["chat_format", "make_api", "tokenizer"]  # fixtures
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
CODE = "open('made.txt', 'w').write('x')"
PROGRAM = f'<tool_call>{{"name": "code_interpreter", "arguments": {{"code": "{CODE}"}}}}</tool_call>'


@pytest.mark.parametrize("calls", [openai_calls.CALLS, anthropic_calls.CALLS], ids=["openai", "anthropic"])
async def test_every_call_of_the_matrix_works(make_api: ApiMaker, tmp_path: Path, calls: list[Call]) -> None:
    def script(request: GenerateRequest) -> Script:
        if request.grammar is None:
            return make_api.says("Hello.")
        asked = api.service.generator.detokenize(list(request.prompt_token_ids))
        return make_api.says(PROGRAM if openai_calls.WRITTEN in asked else CALL)

    engine = ScriptedEngine(script_for=script, vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    api = make_api(engine=engine, files=FilesConfig(folder=tmp_path / "kept"))
    api.service.toolbox.registry.add(CodeInterpreter(Sandbox(SandboxLimits(seconds=60))), seconds=120)
    async with listening(api.app) as port:
        target = Target(f"http://127.0.0.1:{port}", "unused", MODEL)
        found = await asyncio.to_thread(lambda: list(outcomes(calls, target)))
    assert [outcome for outcome in found if outcome.fault] == []
    assert len(found) == len(calls) > 4


def test_a_call_that_does_not_work_is_told_from_a_library_that_is_not_there() -> None:
    def broken(_: Target) -> None:
        raise RuntimeError("no")

    def missing(_: Target) -> None:
        raise ModuleNotFoundError("nothing")

    calls = [Call("a", "b", broken), Call("c", "d", missing)]
    found = list(outcomes(calls, Target("http://127.0.0.1:1", "k", "m")))
    assert found == [Outcome("a", "b", "RuntimeError: no"), Outcome("c", "d", NOT_INSTALLED)]
    assert [outcome.word for outcome in found] == ["FAILS", NOT_INSTALLED]

import time

import pytest
import uvloop

from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.registry import ToolRegistry, ToolScope
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits

FILES = {"numbers.csv": b"3\n4\n5\n"}
SCOPE = ToolScope(tenant="t", user="u", request_id="r", deadline=time.monotonic() + 3600, files=FILES)


@pytest.fixture(scope="module")
def interpreter() -> CodeInterpreter:
    return CodeInterpreter(Sandbox(SandboxLimits(seconds=60)))


async def test_a_program_reads_the_turns_files_and_leaves_its_own(interpreter: CodeInterpreter) -> None:
    code = "total = sum(map(int, open('numbers.csv')))\nprint(total)\nopen('total.txt', 'w').write(str(total))"
    result = await interpreter.run({"code": code}, SCOPE)
    assert result.text == "12\nfiles: total.txt"
    assert result.files == {"total.txt": b"12"}
    assert result.facts["files"] == {"total.txt": 2}
    assert not result.is_error


async def test_the_model_reads_why_its_program_failed(interpreter: CodeInterpreter) -> None:
    result = await interpreter.run({"code": "print('before')\n1 / 0"}, SCOPE)
    assert result.is_error
    assert result.text.startswith("before\nstderr:\nTraceback")
    assert "ZeroDivisionError" in result.text
    assert result.text.endswith("exit code 1")


async def test_a_program_that_never_ends_is_told_so() -> None:
    endless = CodeInterpreter(Sandbox(SandboxLimits(seconds=1)))
    result = await endless.run({"code": "while True: pass"}, SCOPE)
    assert result.is_error
    assert "ran too long" in result.text


async def test_the_calls_own_time_ends_it_too(interpreter: CodeInterpreter) -> None:
    registry = ToolRegistry()
    registry.add(interpreter, seconds=0.5)
    result = await registry.run("code_interpreter", '{"code": "while True: pass"}', SCOPE)
    assert result.is_error
    assert "was stopped" in result.text


def test_programs_run_on_the_event_loop_that_the_server_has() -> None:
    result = uvloop.run(Sandbox(SandboxLimits(seconds=60)).run("print(6 * 7)"))
    assert (result.exit_code, result.stdout) == (0, "42\n")

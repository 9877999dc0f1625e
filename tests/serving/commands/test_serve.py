"""`weft serve` around scripted children."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from serving.cli import build_parser, main
from serving.commands import serve
from serving.commands.deployment_flags import deployment_from
from serving.engine.sockets import socket_of
from serving.lifeline import Status
from serving.supervisor import EXIT_SETUP


class ScriptedProcess:
    """Is ready at once, and ends when asked to. `started` has every command."""

    started: list[list[str]]
    code: int
    expected: int  # how many there will be
    signal: int  # what ends the supervisor then

    def __init__(self) -> None:
        self.last_lines = ["the last words"]
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls, command: Sequence[str], on_line: Callable[[str], None], on_status: Callable[[Status], None]
    ) -> "ScriptedProcess":
        cls.started.append(list(command))
        child = cls()
        if cls.code:
            child._ended.set_result(cls.code)
            return child
        on_line("hello")
        on_status(Status("ready", ready=True, url="http://here"))
        if len(cls.started) == cls.expected:
            os.kill(os.getpid(), cls.signal)
        return child

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        if not self._ended.done():
            self._ended.set_result(0)

    def kill(self) -> None:
        self.terminate()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedProcess]:
    fresh = type("Fresh", (ScriptedProcess,), {"started": [], "code": 0, "expected": 2, "signal": signal.SIGTERM})
    monkeypatch.setattr(serve, "ChildProcess", fresh)
    return fresh


def test_both_processes_get_the_deployment_and_one_socket_and_sigterm_ends_them(
    processes: type[ScriptedProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["serve", "--model", str(tmp_path), "--port", "9001", "--max-model-len", "64"]
    assert main(argv) == 0
    commands = [command[command.index("serving") + 1 :] for command in processes.started]
    parsed = [build_parser(command[0]).parse_args(command) for command in commands]
    assert [command[0] for command in commands] == ["engine", "api"]
    wanted = deployment_from(build_parser("serve").parse_args(argv))
    assert [deployment_from(args) for args in parsed] == [wanted, wanted]
    assert parsed[0].socket == parsed[1].socket
    assert not parsed[0].socket.parent.exists()
    shown = capsys.readouterr().err
    assert "ready at http://here" in shown
    assert "engine | hello" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_end_it_in_order_too(processes: type[ScriptedProcess], tmp_path: Path, number: int) -> None:
    processes.signal = number
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored where the tests run under nohup
    try:
        assert main(["serve", "--model", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_server_under_nohup_outlives_its_terminal(
    processes: type[ScriptedProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "signal", signal.SIGTERM)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["serve", "--model", str(tmp_path)]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_each_further_model_has_an_engine_of_its_own_at_a_socket_of_its_own(
    processes: type[ScriptedProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.expected = 3
    file = tmp_path / "d.toml"
    file.write_text('name = "big"\nmodel = {checkpoint = "big"}\nmodels.small.model = {checkpoint = "small"}\n')
    assert main(["serve", str(file)]) == 0
    commands = [command[command.index("serving") + 1 :] for command in processes.started]
    first, further, api = [build_parser(command[0]).parse_args(command) for command in commands]
    assert [command[0] for command in commands] == ["engine", "engine", "api"]
    assert (first.serves, further.serves) == (None, "small")
    assert further.socket == socket_of(api.socket, 1) != first.socket == api.socket
    assert "engine:small | hello" in capsys.readouterr().err


def test_a_child_with_a_setup_error_ends_it_with_the_same_code(
    processes: type[ScriptedProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.code = EXIT_SETUP
    assert main(["serve", "--model", str(tmp_path)]) == EXIT_SETUP
    assert "the last words" in capsys.readouterr().err


@pytest.mark.usefixtures("restored_logging")
def test_with_json_logs_every_line_is_an_object(
    processes: type[ScriptedProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", str(tmp_path), "--log-format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["output", "output", "ready", "stopping"]
    assert all("--log-format=json" in command for command in processes.started)

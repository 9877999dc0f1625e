"""The command line: what it takes, what it refuses, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli import EXIT_FAILED, EXIT_INTERRUPTED, main
from serving.errors import RequestError
from serving.gateway.ledger import open_ledger
from serving.supervisor import EXIT_SETUP


def test_help_lists_the_commands_and_not_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in ("serve", "chat", "generate", "bench", "convert"):
        assert f"\n    {name} " in shown
    assert "\n    engine" not in shown


def test_ctrl_c_while_a_command_is_imported_is_an_end_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["serve", "demo"]) == EXIT_INTERRUPTED


@pytest.mark.parametrize("command", ["serve", "chat", "generate", "bench", "convert", "engine", "api"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 200


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["serve", "--model", "x", "--tensor-parallel-size", "2"],
        ["serve", "--model", "x", "--max-num", "2"],  # no abbreviations
        ["serve", "--model", "x", "--dtype", "int3"],
        ["serve", "--model", "x", "--max-num-seqs", "0"],
        ["serve", "--model", "x", "--port", "70000"],
        ["generate", "--model", "x", "--port", "1", "--input", "a", "--output", "b"],
        ["bench"],
        ["bench", "serve", "--url", "http://x", "--model", "m", "--rate", "1", "--concurrency", "2"],
        ["bench", "serve", "--url", "http://x", "--model", "m", "--picture", "x.png"],
        ["bench", "serve", "--url", "http://x", "--model", "m", "--input-len-range", "1"],
        ["bench", "serve", "--url", "http://x", "--model", "m", "--token-ids", "9-3"],
        ["bench", "serve", "--url", "http://x", "--model", "m", "--rate", "nan"],
    ],
)
def test_what_is_not_known_is_refused_with_its_name(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["serve"], "one of the two"),
        (["serve", "nonsense"], "no deployment 'nonsense'"),
        (["serve", "./nonsense.toml"], "no such deployment file"),
        (["serve", "--model", "/nonsense"], "no such directory"),
        (["generate", "--model", "{tmp}", "--input", "/nonsense", "--output", "o"], "--input /nonsense"),
        (["api", "--model", "/nonsense", "--socket", "s"], "no such directory"),
    ],
)
def test_what_a_person_must_change_ends_with_the_code_for_it(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([arg.format(tmp=tmp_path) for arg in argv]) == EXIT_SETUP
    error = capsys.readouterr().err
    assert error.startswith("weft: ")
    assert says in error


@pytest.mark.parametrize(
    ("raised", "code"), [(RequestError("no"), EXIT_FAILED), (KeyboardInterrupt(), EXIT_INTERRUPTED)]
)
def test_other_ends_have_codes_too(raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> int:
        raise raised

    monkeypatch.setattr("serving.commands.chat.run", run)
    assert main(["chat"]) == code


def test_the_api_process_loads_no_jax() -> None:
    code = "import sys, serving.cli as c; c.build_parser('api'); import serving.app; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_reader_that_has_enough_is_no_failure_to_tell_of(tmp_path: Path) -> None:
    open_ledger(tmp_path / "usage.sqlite").close()
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "serving", "usage", "--ledger", str(tmp_path / "usage.sqlite")]
    with open(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

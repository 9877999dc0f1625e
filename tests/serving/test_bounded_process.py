"""A child that ends instead of answering, and what is told of its end."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import bounded_process
from serving.bounded_process import BoundedProcess, ProcessEndedError

SCRIPT = """
import json, os, sys, time
while head := sys.stdin.buffer.read(4):
    wanted = json.loads(sys.stdin.buffer.read(int.from_bytes(head, "big")))
    if "status" in wanted:
        os._exit(wanted["status"])
    if "signal" in wanted:
        os.kill(os.getpid(), wanted["signal"])
    if "silent" in wanted:
        os.close(1)
    if "half" in wanted:
        os.write(1, b"xx")
        os._exit(7)
    if "answer" in wanted:
        os.write(1, (2).to_bytes(4, "big") + b"{}")
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BoundedProcess]:
    script = tmp_path / "child.py"
    script.write_text(SCRIPT)
    process = BoundedProcess(script, [], lambda _: None)
    yield process
    process.end()


def ending(process: BoundedProcess, **wanted: int) -> int | None:
    with pytest.raises(ProcessEndedError) as ended:
        process.ask(wanted, 60.0)
    return ended.value.status


def test_how_a_child_ended_is_told_and_the_next_question_has_another(process: BoundedProcess) -> None:
    for status in (0, 1, 12):
        assert ending(process, status=status) == status
    for number in (signal.SIGKILL, signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV):
        assert ending(process, signal=number) == -number
    assert ending(process, half=1) == 7
    assert process.ask({"answer": 1}, 60.0) == {}


def test_a_child_that_ended_before_it_was_told_all_is_told_of_too(process: BoundedProcess) -> None:
    with pytest.raises(ProcessEndedError) as ended:
        process.ask({"status": 3, "long": "x" * 4_000_000}, 60.0)
    assert ended.value.status == 3


def test_a_child_that_lives_on_behind_a_closed_pipe_is_killed(
    process: BoundedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_process, "_ENDING", 0.01)
    process.start()
    child = process._process
    assert child is not None
    assert ending(process, silent=1) is None
    assert child.returncode == -signal.SIGKILL

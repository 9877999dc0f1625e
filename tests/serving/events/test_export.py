from pathlib import Path

import pytest

from serving.errors import SetupError
from serving.events.export import export_events
from serving.events.outbox import Outbox
from tests.serving.events.recording import entry


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


def test_a_later_run_goes_on_and_what_a_killed_one_left_is_written_anew(tmp_path: Path) -> None:
    outbox, target = Outbox(tmp_path / "events"), tmp_path / "out.jsonl"
    outbox.append([entry(number) for number in range(3)])
    assert export_events(outbox, target) == 3
    outbox.append([entry(3), entry(4)])
    with target.open("a") as file:
        file.write("3 \n4")  # killed before its cursor was written
    assert export_events(outbox, target) == 2
    assert export_events(outbox, target) == 0
    assert numbers(target) == [0, 1, 2, 3, 4]


def test_a_file_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    outbox, target = Outbox(tmp_path / "events"), tmp_path / "out.jsonl"
    outbox.append([entry(0)])
    target.write_text("mine\n")
    with pytest.raises(SetupError, match=r"no out\.jsonl\.cursor"):
        export_events(outbox, target)
    assert target.read_text() == "mine\n"
    target.unlink()
    export_events(outbox, target)
    other = Outbox(tmp_path / "other")
    with pytest.raises(SetupError, match="another outbox"):
        export_events(other, target)
    target.write_text("")
    with pytest.raises(SetupError, match="has less than"):
        export_events(outbox, target)
    target.with_name("out.jsonl.cursor").write_text("{}")
    with pytest.raises(SetupError, match="no cursor"):
        export_events(outbox, target)

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.events.outbox import Outbox, Wish
from tests.serving.events.recording import MOST, entry


def test_events_are_read_in_the_order_in_which_they_were_written_and_from_any_position(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "new" / "events")
    outbox.append([entry(1), entry(2)])
    Outbox(outbox.path).append([entry(3)])
    read = outbox.read(0, MOST)
    assert [one.id for one in read] == ["run-1", "run-2", "run-3"]
    assert [one.id for one in outbox.read(read[0].position, 1)] == ["run-2"]
    assert outbox.read(outbox.end, MOST) == []
    assert [one.id for one in outbox.last(2)] == ["run-2", "run-3"]
    assert outbox.path.stat().st_mode & 0o777 == 0o600


def test_an_event_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "events")
    outbox.append([entry(1), entry(2)])
    outbox.append([entry(2), entry(3)])
    assert [one.id for one in outbox.read(0, MOST)] == ["run-1", "run-2", "run-3"]


def test_a_reader_gets_the_types_and_the_time_that_it_wants(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "events")
    called, ended, of_requests = "weft.tool.called.v1", "weft.tool.ended.v1", "weft.request.ended.v1"
    outbox.append([entry(1, kind=called), entry(2, kind=ended), entry(3, kind=of_requests), entry(4, time=2000.0)])

    def numbers(**wish: object) -> list[int]:
        return [int(one.event) for one in outbox.read(0, MOST, Wish(**wish))]  # type: ignore[arg-type]

    assert numbers(type="weft.tool") == [1, 2, 4]
    assert numbers(type=ended) == [2, 4]
    assert numbers(type="weft.too") == []
    assert numbers(since=1500.0) == [4]
    assert [int(one.event) for one in outbox.last(1, Wish(type="weft.request"))] == [3]


def test_positions_grow_though_all_was_dropped_and_readers_never_go_back(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "events")
    outbox.append([entry(1), entry(2)])
    outbox.advance("r", 2)
    outbox.advance("r", 1)
    assert outbox.trim(5000.0, 1 << 30) == 0
    outbox.append([entry(3)])
    assert [(one.id, one.position) for one in outbox.read(0, MOST)] == [("run-3", 3)]
    assert (outbox.position("r"), outbox.waiting("r"), outbox.position("other"), outbox.waiting("other")) == (
        2,
        1,
        0,
        1,
    )


def test_what_is_too_old_or_too_much_goes_the_oldest_first_and_what_a_reader_misses_is_counted(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "events")
    outbox.append([entry(number, time=1000.0 if number < 300 else 2000.0, size=1000) for number in range(2000)])
    outbox.advance("r", outbox.read(0, MOST)[99].position)
    assert outbox.trim(1500.0, 1 << 30, "r") == 200
    assert int(outbox.read(0, 1)[0].event) == 300
    before = outbox.path.stat().st_size
    missed = outbox.trim(0.0, 1 << 20, "r")
    left = outbox.read(0, MOST)
    assert [int(one.event) for one in left] == list(range(300 + missed, 2000))
    assert 100 < len(left) < 1049
    assert outbox.path.stat().st_size < 0.75 * before  # given back to the file system


def test_a_file_has_a_name_and_a_secret_of_its_own_that_stay(tmp_path: Path) -> None:
    outbox, other = Outbox(tmp_path / "events"), Outbox(tmp_path / "other")
    known = outbox.name, outbox.secret
    assert (Outbox(outbox.path).name, Outbox(outbox.path).secret) == known
    assert known != (other.name, other.secret)
    outbox.path.unlink()
    assert outbox.name != known[0]


def test_what_is_no_outbox_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes" * 1000)
    with sqlite3.connect(tmp_path / "keys") as database:
        database.execute("CREATE TABLE keys (id)")
    for name, why in (("notes", "not a database"), ("keys", "a database of something else")):
        with pytest.raises(ConfigError, match=why):
            Outbox(tmp_path / name)
    assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("keys",)]


def test_what_was_written_survives_the_process_that_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from serving.events.outbox import Outbox
from tests.serving.events.recording import entry
Outbox(Path(sys.argv[1])).append([entry(1), entry(2)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "events")], check=False)
    assert done.returncode == -9
    assert [one.id for one in Outbox(tmp_path / "events").read(0, MOST)] == ["run-1", "run-2"]

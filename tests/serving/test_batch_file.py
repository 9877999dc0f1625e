"""The output of a batch, over kills and second runs."""

import json
from pathlib import Path

import pytest

from serving.batch_file import BatchFile
from serving.errors import SetupError


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_appended_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with BatchFile(path) as output:
        assert output.finished == set()
        output.append({"id": "a"})
        output.append({"id": 2})
    with BatchFile(path) as output:
        assert output.finished == {"a", 2}
        output.append({"id": "c"})
    assert [record["id"] for record in lines(path)] == ["a", 2, "c"]


def test_a_torn_last_line_is_dropped_at_every_length(tmp_path: Path) -> None:
    whole = b'{"id":"a","choices":[]}\n{"id":"b","choices":["text"]}\n'
    path = tmp_path / "out.jsonl"
    first = whole.index(b"\n") + 1
    for length in range(first + 1, len(whole)):
        path.write_bytes(whole[:length])
        with BatchFile(path) as output:
            assert output.finished == {"a"}
            output.append({"id": "b"})
        assert [record["id"] for record in lines(path)] == ["a", "b"]


def test_errors_are_dropped_so_that_their_lines_run_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"id":"a"}\n{"id":"b","error":{}}\n{"id":"c"}\n')
    with BatchFile(path) as output:
        assert output.finished == {"a", "c"}
    assert [record["id"] for record in lines(path)] == ["a", "c"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_every_record_is_in_the_file_as_soon_as_it_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with BatchFile(path) as output:
        output.append({"id": 1})
        assert lines(path) == [{"id": 1}]


@pytest.mark.parametrize("content", ['{"id":1}\nimportant notes\n', '[1]\n{"id":1}\n', '{"choices":[]}\n'])
def test_a_file_that_is_no_batchs_output_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(SetupError, match="no record of a batch"), BatchFile(path):
        pass
    assert path.read_text() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("path", "says"),
    [("none/out.jsonl", "No such file or directory"), (".", "regular file"), ("/dev/full", "regular file")],
)
def test_a_place_that_takes_no_records_is_refused_by_name(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(SetupError, match=says) as refused, BatchFile(tmp_path / path):
        pass
    assert str(tmp_path / path) in refused.value.message


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    with BatchFile(tmp_path / "out.jsonl") as output:  # whose end does not fail once more
        output._file.close()
        output._file = Path("/dev/full").open("ab")  # noqa: SIM115 -- the batch file closes it
        with pytest.raises(SetupError, match=r"out.jsonl: cannot be written: No space left on device"):
            output.append({"id": 1})


@pytest.mark.parametrize("content", ["", '{"id":1,"error":{}}\n'])
def test_two_runs_cannot_write_to_one_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with BatchFile(path), pytest.raises(SetupError, match="another run"), BatchFile(path):
        pass

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli import main
from serving.events.event_types import EVENT_TYPES, CanaryScored
from serving.events.outbox import Outbox
from tests.serving.events.recording import drained, log_of


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    log = log_of(tmp_path / "events")
    for number in range(3):
        log.add(drained(number), f"request-{number}")
    log.add(CanaryScored(canary="capital", outcome="scored", usual=1.0, score=0.5))
    log.close()
    return tmp_path / "events"


def test_the_last_events_are_lines_of_the_types_and_the_time_asked_for(
    outbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tail(*flags: str) -> list[str]:
        assert main(["events", "tail", f"--outbox={outbox}", *flags]) == 0
        return capsys.readouterr().out.splitlines()

    assert len(tail()) == len(tail("--since=2026-01-01")) == 4
    second, last = tail("--last=2")
    assert second.endswith(" weft.server.drained.v1 request-2 open_streams=2 left_streams=0 seconds=0.5")
    assert last.endswith(' weft.canary.scored.v1 canary="capital" outcome="scored" usual=1.0 score=0.5')
    (whole,) = tail("--type=server", "--last=1", "--json")
    assert (json.loads(whole)["subject"], json.loads(whole)["specversion"]) == ("request-2", "1.0")
    assert len(tail("--type=server.drained", "--since=2026-01-01")) == 3
    assert tail("--since=2999-01-01") == []


def test_a_reader_that_follows_sees_what_comes(outbox: Path) -> None:
    command = [sys.executable, "-m", "serving", "events", "tail", f"--outbox={outbox}", "--last=1", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert "capital" in reader.stdout.readline()
        log = log_of(outbox)
        log.add(drained(), "new")
        log.close()
        assert "drained.v1 new" in reader.stdout.readline()
        reader.kill()


def test_an_export_goes_on_where_the_last_one_ended(outbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = outbox.with_name("out.jsonl")
    for added in (4, 0):
        assert main(["events", "export", f"--outbox={outbox}", f"--to={target}"]) == 0
        assert capsys.readouterr().out == f"{added} events added to {target}\n"
    whole = [json.loads(entry.event) for entry in Outbox(outbox).read(0, 10)]
    assert [json.loads(line) for line in target.read_text().splitlines()] == whole


def test_schemas_are_printed_of_one_type_or_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "schema"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {kind.type for kind in EVENT_TYPES}
    assert main(["events", "schema", "request.ended"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "weft.request.ended.v1"


def test_an_outbox_that_is_not_there_is_not_made_and_a_type_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", "tail", f"--outbox={tmp_path / 'nowhere'}"]) == 78
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        main(["events", "tail", "--outbox=x", "--type=prompts"])
    assert "'prompts' is none of request.admitted" in capsys.readouterr().err

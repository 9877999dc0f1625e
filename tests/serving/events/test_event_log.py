import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from serving.events import event_log
from serving.events.event_log import EventLog
from serving.events.event_types import ToolCalled
from serving.events.outbox import Outbox
from tests.serving.events.recording import drained, events_of, log_of

PATIENCE = 120.0  # seconds; only a broken test waits that long


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def wait_until(reached: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(round(PATIENCE / 0.01)):
        if reached():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come to that")


def test_what_is_told_is_a_cloud_event_in_the_outbox(tmp_path: Path) -> None:
    log = log_of(tmp_path / "events")
    log.add(drained(3), "request-1")
    log.add(drained(4))
    log.close()
    first, second = events_of(tmp_path / "events")
    assert first.pop("id") != second.pop("id")
    assert first.pop("time").endswith("Z")
    assert first.pop("source").startswith("weft://")
    assert first == {
        "specversion": "1.0",
        "type": "weft.server.drained.v1",
        "subject": "request-1",
        "datacontenttype": "application/json",
        "withtext": False,
        "data": {"open_streams": 3, "left_streams": 0, "seconds": 0.5},
    }
    assert "subject" not in second


def test_what_several_processes_see_is_recorded_once(tmp_path: Path) -> None:
    logs = [log_of(tmp_path / "events"), log_of(tmp_path / "events")]
    for log in logs:
        log.add(drained(), name="engine-1")
        log.add(drained())
        log.close()
    ids = [event["id"] for event in events_of(tmp_path / "events")]
    assert ids.count("engine-1") == 1
    assert len(set(ids)) == len(ids) == 3


def test_a_log_that_is_off_records_nothing() -> None:
    log = EventLog()
    log.add(drained())
    assert not log.records("request", "a")
    log.close()


def test_groups_that_are_not_asked_for_are_left_out_and_losses_never(tmp_path: Path) -> None:
    log = log_of(tmp_path / "events", record=("tool",))
    assert log.records("tool", "a")
    assert not log.records("request", "a")
    assert log.records("events")
    log.close()


def test_the_share_of_requests_is_kept_and_every_process_chooses_the_same(tmp_path: Path) -> None:
    log, other = (log_of(tmp_path / name, sample=0.25) for name in ("events", "other"))
    ids = [f"request-{number}" for number in range(2000)]
    chosen = [name for name in ids if log.records("request", name)]
    assert 400 < len(chosen) < 600
    assert chosen == [name for name in ids if other.records("tool", name)]
    assert log.records("engine")
    for one in (log, other):
        one.close()


def test_users_are_hashes_that_cannot_be_had_without_the_secret(tmp_path: Path) -> None:
    log, other = (log_of(tmp_path / name) for name in ("events", "other"))
    assert log.name_of("acme", "ada") == log.name_of("acme", "ada")
    names = {log.name_of("acme", "ada"), log.name_of("ac", "meada"), log.name_of("acme", "bob")}
    assert len(names | {other.name_of("acme", "ada")}) == 4
    again = log_of(tmp_path / "events")
    assert again.name_of("acme", "ada") in names
    plain = log_of(tmp_path / "plain", users="plain")
    assert plain.name_of("acme", "ada") == "ada"
    for one in (log, other, again, plain):
        one.close()


def test_what_json_cannot_hold_fails_nobody(tmp_path: Path) -> None:
    log = log_of(tmp_path / "events", text=True, users="plain")
    log.add(ToolCalled(tenant="t", tool="x", user=log.name_of("t", "a\udcff"), arguments=log.text_of("\ud800")))
    log.close()
    (event,) = events_of(tmp_path / "events")
    assert (event["data"]["user"], event["data"]["arguments"]) == ("a?", "?")


def test_text_is_warned_of_at_the_start_and_marked_in_each_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_of(tmp_path / "without").close()
    assert not caplog.records
    log = log_of(tmp_path / "with", text=True)
    log.add(drained())
    log.close()
    (record,) = caplog.records
    assert (record.levelno, "events.text" in record.getMessage()) == (logging.WARNING, True)
    assert [event["withtext"] for event in events_of(tmp_path / "with")] == [True]


def test_an_outbox_that_is_away_stops_nobody_and_gets_all_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "FLUSH_SECONDS", 0.01)
    registry, folder, away = CollectorRegistry(), tmp_path / "disk", tmp_path / "away"
    log = log_of(folder / "events", registry)
    folder.rename(away)
    for number in range(100):
        log.add(drained(number))
    wait_until(lambda: value(registry, "weft_event_write_failures_total") > 0)
    away.rename(folder)
    log.close()
    assert [event["data"]["open_streams"] for event in events_of(folder / "events")] == list(range(100))
    assert value(registry, "weft_events_total") == 100


def test_what_waits_is_bounded_and_what_is_lost_is_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(event_log, "MOST_PENDING_BYTES", 10_000)
    registry, folder, away = CollectorRegistry(), tmp_path / "disk", tmp_path / "away"
    log = log_of(folder / "events", registry)
    folder.rename(away)
    for number in range(200):
        log.add(drained(number))
    wait_until(lambda: value(registry, "weft_event_write_failures_total") > 0)
    lost = value(registry, "weft_events_lost_total", reason="queue_full")
    away.rename(folder)
    log.close()
    *kept, told = events_of(folder / "events")
    assert (told["type"], told["data"]) == ("weft.events.lost.v1", {"count": lost, "reason": "queue_full"})
    assert len(kept) + lost == 200
    assert 0 < sum(map(len, map(str, kept))) < 2 * 10_000
    numbers = [int(event["id"].rpartition("-")[2]) for event in kept]
    assert numbers == sorted(numbers)


def test_retention_is_kept_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(event_log, "TRIM_SECONDS", 0.01)
    outbox = Outbox(tmp_path / "events")
    old = log_of(outbox.path)
    old.add(drained(1))
    old.close()
    log = log_of(outbox.path, retain_days=1e-9)
    wait_until(lambda: outbox.read(0, 10) == [])  # nobody adds anything meanwhile
    log.close()

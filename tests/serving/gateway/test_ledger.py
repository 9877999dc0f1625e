import threading
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.gateway import ledger as ledger_module
from serving.gateway.ledger import Ledger, UsageRow, read_usage, sum_usage


def row(time: float = 1.0, tenant: str = "acme", **changed: Any) -> UsageRow:
    numbers = {"prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "device_seconds": 0.5, "complete": True}
    return UsageRow(time=time, key_id=f"{tenant}-key", tenant=tenant, model="m", **{**numbers, **changed})


def test_what_was_added_is_read_again_by_time_and_tenant_and_summed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage")
    rows = [row(1.0), row(2.0, "other"), row(3.0, complete=False)]
    for one in rows:
        ledger.add(one)
    ledger.close()
    assert list(read_usage(ledger.path)) == rows
    assert list(read_usage(ledger.path, since=2.0, until=3.0)) == rows[1:2]
    first, second = sum_usage(ledger.path)
    assert (first.tenant, first.requests, first.prompt_tokens, first.device_seconds) == ("acme", 2, 20, 1.0)
    assert sum_usage(ledger.path, tenant="other") == [second]


def test_a_file_that_cannot_be_written_stops_nobody_and_is_written_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, as SQLite sees it: the database may grow no more."""
    failed = threading.Event()
    monkeypatch.setattr(ledger_module, "WRITE_EVERY_SECONDS", 0.01)
    ledger = Ledger(tmp_path / "usage", on_failure=failed.set)
    real = ledger_module.open_ledger

    def on_a_full_disk(path: Path) -> Any:
        database = real(path)
        database.execute("PRAGMA max_page_count = 1")
        return database

    monkeypatch.setattr(ledger_module, "open_ledger", on_a_full_disk)
    rows = [row(float(i), "t" * 100) for i in range(200)]
    for one in rows:
        ledger.add(one)
    assert failed.wait(120)
    monkeypatch.setattr(ledger_module, "open_ledger", real)
    ledger.close()
    assert list(read_usage(ledger.path)) == rows


def test_rows_that_wait_are_bounded_and_the_oldest_are_given_up_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[None] = []
    failed = threading.Event()
    ledger = Ledger(tmp_path / "usage", on_failure=failed.set, on_drop=lambda: dropped.append(None))
    monkeypatch.setattr(ledger_module, "MOST_PENDING", 3)

    def unwritable(path: Path) -> Any:
        raise ConfigError("gone")

    monkeypatch.setattr(ledger_module, "open_ledger", unwritable)
    for i in range(5):
        ledger.add(row(float(i)))
    assert failed.wait(120)
    ledger.close()
    assert len(dropped) == 2


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    Ledger(tmp_path / "usage.sqlite").close()
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0]


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes" * 1000)
    with pytest.raises(ConfigError, match="not a usage ledger"):
        Ledger(tmp_path / "notes")

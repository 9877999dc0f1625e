import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from serving.cli import main
from serving.gateway.key_store import KeyStore
from serving.gateway.ledger import Ledger, UsageRow


def row(time: float, tenant: str) -> UsageRow:
    numbers: dict[str, Any] = {"prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "device_seconds": 0.5}
    return UsageRow(time=time, key_id="k", tenant=tenant, model="m", complete=True, **numbers)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    made = Ledger(tmp_path / "usage.sqlite")
    for one in (row(1_767_225_600.0, "acme"), row(1_767_312_000.0, "acme"), row(1_767_312_001.0, "=other")):
        made.add(one)  # 2026-01-01, twice 2026-01-02
    made.close()
    return made.path


def test_sums_are_csv_and_rows_are_json_lines_of_the_time_and_tenant_asked_for(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["usage", f"--ledger={ledger}"]) == 0
    sums = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {line["tenant"]: (line["requests"], line["prompt_tokens"]) for line in sums} == {
        "acme": ("2", "20"),
        "=other": ("1", "10"),
    }
    asked = ["--rows", "--format=jsonl", "--since=2026-01-02", "--until=2026-01-03T00:00", "--tenant=acme"]
    assert main(["usage", f"--ledger={ledger}", *asked]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["time"] == 1_767_312_000.0


def test_another_database_is_refused_and_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.sqlite"
    KeyStore(keys).close()
    before = keys.read_bytes()
    assert main(["usage", f"--ledger={keys}"]) == 78
    assert "not a usage ledger: it has keys" in capsys.readouterr().err
    assert keys.read_bytes() == before


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", f"--ledger={tmp_path / 'nowhere'}"]) == 78
    assert not (tmp_path / "nowhere").exists()

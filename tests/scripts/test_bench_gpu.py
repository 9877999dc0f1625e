"""The GPU bench: every part at toy sizes on a CPU, and what becomes of parts that fail."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.gpu_bench import __main__ as bench
from scripts.gpu_bench import ceilings
from scripts.gpu_bench.report import Check, Figure, Note, Recorder, read_records, table
from scripts.gpu_bench.scale import SMOKE


def test_every_part_runs_at_toy_sizes_and_every_check_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    assert bench.main(["--smoke", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [r for r in found["records"] if r.get("failed") or r.get("passed") is False] == []
    with_figures = {r["part"] for r in found["records"] if r["kind"] == "Figure"}
    assert with_figures >= {"ceilings", "engine", "decode", "prefill", "mixed", "grouped", "command-buffers"}
    checked = {r["part"] for r in found["records"] if r["kind"] == "Check"}
    assert checked == {name for name in bench.PARTS if name.startswith("check-")}
    assert all(r["share"] > 0 for r in found["records"] if r["kind"] == "Figure" and "share" in r)
    assert "flashinfer is not installed" in capsys.readouterr().out


def test_a_part_that_raises_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(ceilings, "run", fail)
    assert bench.main(["--smoke", "--part", "ceilings", "--part", "command-buffers"]) == 0
    shown = capsys.readouterr().out
    assert "ceilings FAILED: RuntimeError: no memory left" in shown
    assert "step, in this process" in shown


def test_a_wrong_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.gpu_bench import checks

    body = checks.attention_body("reference")

    def wrong(*operands: Any) -> Any:
        out, pool = body.attend(*operands)
        return out * 1.05, pool.at[:, 0].set(0)

    monkeypatch.setattr(checks, "attention_body", lambda _: SimpleNamespace(attend=wrong, refusal=body.refusal))
    file = io.StringIO()
    case = checks.Case("wrong", 4, 2, "float32", (1, 1, 9))
    checks._check(SMOKE, Recorder("check-mixed", file), case, checks.np.random.default_rng(0))
    assert [json.loads(line)["passed"] for line in file.getvalue().splitlines()] == [False, False]


CHILD = """
import sys, time
path = sys.argv[sys.argv.index("--records") + 1]
open(path, "a").write('{"kind": "Note", "part": "decode", "text": "begun", "failed": false}\\n{"kind": "No')
"""


@pytest.mark.parametrize(("end", "said"), [("sys.exit('aborted')", "aborted"), ("time.sleep(60)", "cut off after 1 s")])
def test_a_part_that_dies_or_takes_too_long_keeps_what_it_found(tmp_path: Path, end: str, said: str) -> None:
    path = tmp_path / "decode"
    path.touch()
    seconds = 1 if "sleep" in end else 60
    records = bench.run_child("decode", path, [sys.executable, "-S", "-c", CHILD + end], seconds)
    assert isinstance(records[-1], Note)
    assert records[-1].failed
    assert said in records[-1].text


def test_a_share_is_the_time_at_the_ceiling_over_the_time_taken() -> None:
    figure = Figure("decode", "case", seconds=2e-3, bytes=1e9, flops=1e9)
    assert figure.share(1e12, 1e12) == (pytest.approx(0.5), "memory")
    assert figure.share(None, 1e12) is None
    records = [Figure("ceilings", "copy", 1.0, bytes=1e12), Figure("ceilings", "matmul", 1.0, flops=1e12), figure]
    assert "| decode | case | 2,000.0 | 500.0 | 0.50 | 50.0% | memory |" in table(records)


def test_a_failed_check_or_a_check_that_did_not_end_fails_the_run() -> None:
    assert bench._is_failure(Check("check-decode", "case", False, ""))
    assert bench._is_failure(Note("check-decode", "died", failed=True))
    assert not bench._is_failure(Note("peers", "died", failed=True))


def test_records_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "records"
    with path.open("w") as file:
        Recorder("decode", file).figure("case", 1.0, bytes=2.0)
        Recorder("decode", file).note("text")
    assert read_records(path) == [Figure("decode", "case", 1.0, 2.0), Note("decode", "text")]

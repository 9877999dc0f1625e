import json
from pathlib import Path

from serving.observability.crash_report import MOST_REPORTS, write_crash_report


def _fail(prompt: str) -> Exception:
    try:
        try:
            raise KeyError(prompt)
        except KeyError as error:
            raise RuntimeError(f"while reading {prompt}") from error
    except RuntimeError as error:
        return error


def test_a_report_says_where_it_failed_and_how_large_the_step_was(tmp_path: Path) -> None:
    report = json.loads(write_crash_report(tmp_path, "engine", _fail("x"), {"num_tokens": 7}).read_text())
    assert [failure["type"] for failure in report["failures"]] == ["builtins.RuntimeError", "builtins.KeyError"]
    assert report["failures"][0]["frames"][0].endswith("_fail")
    assert report["sizes"] == {"num_tokens": 7}
    assert {"weft", "jax", "python"} <= set(report["versions"])


def test_no_word_of_a_user_is_in_it(tmp_path: Path) -> None:
    assert "my secret" not in write_crash_report(tmp_path, "engine", _fail("my secret"), {}).read_text()


def test_old_reports_go(tmp_path: Path) -> None:
    for second in range(MOST_REPORTS + 5):
        write_crash_report(tmp_path, "engine", _fail("x"), {}, now=1_700_000_000.0 + second)
    assert len(list(tmp_path.iterdir())) == MOST_REPORTS

"""What `weft serve` prints."""

import io
import json
import os
import sys
from typing import Any

import pytest
from rich.console import Console

from serving.commands.serve_report import JsonServeReport, ServeReport, report_of
from serving.lifeline import Status
from serving.observability.logs import LogFormat
from serving.supervisor import Died, GaveUp, Progress, Ready, Stopping


def printed(*events: object, terminal: bool = False) -> str:
    out = io.StringIO()
    with ServeReport(Console(file=out, force_terminal=terminal, width=200, color_system=None)) as report:
        for event in events:
            report.event(event)  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def test_off_a_terminal_each_new_thing_is_one_line() -> None:
    progress = [Progress("engine", Status("compiling programs", i, 9)) for i in range(9)]
    shown = printed(Progress("engine", Status("loading weights")), *progress, Ready("http://h:1", 2.25, again=False))
    assert shown.splitlines() == [
        "  weft | engine: loading weights",
        "  weft | engine: compiling programs",
        "  weft | ready at http://h:1 in 2.2 s",
    ]


def test_on_a_terminal_progress_is_one_live_line_with_its_count() -> None:
    shown = printed(Progress("engine", Status("compiling programs", 3, 9)), terminal=True)
    assert "engine: compiling programs 3/9" in shown


def test_deaths_and_the_end_are_told() -> None:
    shown = printed(
        Died("engine", "was killed by SIGKILL", 0.5),
        Ready("u", 1.0, again=True),
        GaveUp("api", "ended with exit code 1", ("[bold]not markup[/]", "last")),
        Stopping(),
    )
    assert "the engine process was killed by SIGKILL; the next one starts in 0.5 s" in shown
    assert "ready again at u" in shown
    assert "the api process ended with exit code 1 and cannot be kept alive" in shown
    assert "[bold]not markup[/]" in shown
    assert "stopping" in shown


def test_a_childs_lines_pass_through_as_they_are() -> None:
    out = io.StringIO()
    ServeReport(Console(file=out, width=40, soft_wrap=True)).line("engine", "[red]x[/] " + "y" * 100)
    assert out.getvalue() == "engine | [red]x[/] " + "y" * 100 + "\n"


@pytest.mark.usefixtures("restored_logging")
def test_as_json_every_line_is_one_object_with_its_process() -> None:
    out = io.StringIO()
    with JsonServeReport(out) as report:
        report.event(Progress("engine", Status("compiling programs", 1, 9)))
        report.event(Progress("engine", Status("compiling programs", 2, 9)))
        report.line("api", '{"time": "t", "level": "info", "event": "request", "status": 200}')
        report.line("engine", "a library's own [words]")
        report.line("engine", "[1]")
        report.event(Ready("http://h:1", 2.25, again=False))
        report.event(Died("engine", "was killed by SIGKILL", 0.5))
        report.event(GaveUp("api", "ended with exit code 1", ("last",)))
        report.event(Stopping())
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["process"], line["event"], line["level"]) for line in lines] == [
        ("engine", "starting", "info"),
        ("api", "request", "info"),
        ("engine", "output", "info"),
        ("engine", "output", "info"),
        ("weft", "ready", "info"),
        ("weft", "a process died", "warning"),
        ("weft", "a process cannot be kept alive", "error"),
        ("weft", "stopping", "info"),
    ]
    assert lines[1]["status"] == 200
    assert lines[2]["line"] == "a library's own [words]"
    assert lines[4]["url"] == "http://h:1"
    assert lines[6]["last_lines"] == ["last"]
    assert all(line["time"] for line in lines)


@pytest.mark.usefixtures("restored_logging")
def test_the_deployments_format_chooses_the_report() -> None:
    assert isinstance(report_of("json"), JsonServeReport)
    assert isinstance(report_of("text"), ServeReport)


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.usefixtures("restored_logging")
def test_a_log_that_nobody_reads_any_more_ends_nothing(kind: LogFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with report_of(kind) as report:
            for number in range(3):
                report.line("api", json.dumps({"event": "answered", "number": number}))
            report.event(Stopping())
        assert os.stat(os.devnull) == os.fstat(stream.fileno())

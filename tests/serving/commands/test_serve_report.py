"""What `weft serve` prints."""

import io

from rich.console import Console

from serving.commands.serve_report import ServeReport
from serving.lifeline import Status
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

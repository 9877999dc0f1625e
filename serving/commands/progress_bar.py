"""A bar on a terminal; nothing where the output is a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Advance(Protocol):
    def __call__(self, count: int, note: str = "", /) -> None:
        """Counts; `note` stands behind the bar. Cheap enough to be called for every token."""


@contextmanager
def progress_bar(console: Console, what: str, total: int) -> Iterator[Advance]:
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, note="")

        def advance(count: int, note: str = "", /) -> None:
            progress.update(task, advance=count, note=note)

        yield advance

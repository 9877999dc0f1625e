"""What `weft serve` shows: the children's log lines under a prefix, and one live line of progress on a terminal."""

from types import TracebackType
from typing import assert_never

from rich.console import Console
from rich.text import Text

from serving.lifeline import Status
from serving.supervisor import Died, Event, GaveUp, Progress, Ready, Stopping

_COLORS = {"engine": "cyan", "api": "magenta", "weft": "green"}


class ServeReport:
    """A context: the live line is gone when it ends."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._spinner = self._console.status("starting")
        self._last_text: dict[str, str] = {}

    def __enter__(self) -> "ServeReport":
        if self._console.is_terminal:
            self._spinner.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._spinner.stop()

    def line(self, role: str, line: str) -> None:
        """One line that a child logged."""
        self._console.print(Text.assemble((f"{role:>6} | ", _COLORS[role]), line))

    def event(self, event: Event) -> None:
        match event:
            case Progress(role, status):
                self._progress(role, status)
            case Ready(url, seconds, again):
                self._spinner.stop()
                word = "ready again" if again else "ready"
                self.line("weft", f"{word} at {url} in {seconds:.1f} s")
            case Died(role, how, restart_in):
                self.line("weft", f"the {role} process {how}; the next one starts in {restart_in:g} s")
            case GaveUp(role, how, last_lines):
                self._spinner.stop()
                self.line("weft", f"the {role} process {how} and cannot be kept alive. Its last lines:")
                for last in last_lines:
                    self._console.print(Text(f"       | {last}", "red"))
            case Stopping():
                self.line("weft", "stopping: open streams end first")
            case _:
                assert_never(event)

    def _progress(self, role: str, status: Status) -> None:
        """Live on a terminal; elsewhere one line whenever a new thing begins."""
        if self._console.is_terminal:
            count = f" {status.done}/{status.total}" if status.total else ""
            self._spinner.update(Text(f"{role}: {status.text}{count}"))
        elif self._last_text.get(role) != status.text:
            self.line("weft", f"{role}: {status.text}")
        self._last_text[role] = status.text

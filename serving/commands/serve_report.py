"""What `weft serve` shows: the children's log lines under a prefix, and one live line of progress on a terminal; or all
of it as JSON, a line an event."""

import logging
import os
import sys
from types import TracebackType
from typing import TextIO, assert_never, cast

import msgspec
from rich.console import Console
from rich.text import Text

from serving.lifeline import Status
from serving.observability.logs import LogFormat, configure_logging, log_event
from serving.supervisor import Died, Event, GaveUp, Progress, Ready, Stopping

log = logging.getLogger(__name__)

_COLORS = {"engine": "cyan", "api": "magenta", "follower": "cyan", "weft": "green"}


def _tell_nobody(stream: TextIO) -> None:
    """For a stream whose reader is gone, as of `weft serve 2>&1 | head`: that ends what is told, not what is served."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


class _LogConsole(Console):
    def on_broken_pipe(self) -> None:
        """rich's own ends the process."""
        _tell_nobody(cast(TextIO, self.file))


class ServeReport:
    """A context: the live line is gone when it ends."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _LogConsole(stderr=True, highlight=False, soft_wrap=True)
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
        self._console.print(Text.assemble((f"{role:>6} | ", _COLORS[role.partition(":")[0]]), line))

    def event(self, event: Event) -> None:
        match event:
            case Progress(role, status):
                self._progress(role, status)
            case Ready(url, seconds, again):
                self._spinner.stop()
                word = "ready again" if again else "ready"
                self.line("weft", f"{word}{f' at {url}' if url else ''} in {seconds:.1f} s")
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


class JsonServeReport:
    """For a collector of logs: each line is one object, with `process` beside the fields of `JsonFormatter`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._last_text: dict[str, str] = {}
        configure_logging("json", stream=self._stream)

    def __enter__(self) -> "JsonServeReport":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.flush()

    def line(self, role: str, line: str) -> None:
        """One line that a child logged, or that a library in it printed: that one becomes a field."""
        try:
            fields = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError:
            log_event(log, "output", process=role, line=line)
            return
        try:
            self._stream.write(msgspec.json.encode({"process": role} | fields).decode() + "\n")
            self._stream.flush()
        except BrokenPipeError:
            _tell_nobody(self._stream)

    def event(self, event: Event) -> None:
        match event:
            case Progress(role, status):
                if self._last_text.get(role) != status.text:
                    log_event(log, "starting", process=role, doing=status.text)
                self._last_text[role] = status.text
            case Ready(url, seconds, again):
                log_event(log, "ready again" if again else "ready", process="weft", url=url, seconds=round(seconds, 1))
            case Died(role, how, restart_in):
                fields = {"died": role, "how": how, "restart_in": restart_in}
                log_event(log, "a process died", level=logging.WARNING, process="weft", **fields)
            case GaveUp(role, how, last_lines):
                fields = {"died": role, "how": how, "last_lines": last_lines}
                log_event(log, "a process cannot be kept alive", level=logging.ERROR, process="weft", **fields)
            case Stopping():
                log_event(log, "stopping", process="weft")
            case _:
                assert_never(event)


def report_of(log_format: LogFormat) -> ServeReport | JsonServeReport:
    return JsonServeReport() if log_format == "json" else ServeReport()

"""A date that leaps for a server and its child processes, by libfaketime (Debian: `faketime`). Their monotonic clocks
go on, as those of a machine do whose date is set."""

from pathlib import Path

LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1")


class LeapingClock:
    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError where there is no libfaketime."""
        found = [str(path) for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])]
        if not found:
            raise FileNotFoundError("libfaketime is needed: install Debian's package faketime")
        self._file = folder / "clock"
        self.leap_to(0)
        self.environment = {
            "LD_PRELOAD": found[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",  # the file is read at each look at the clock
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def leap_to(self, seconds: float) -> None:
        """So far before (below 0) or after the true date."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+g}\n")
        written.replace(self._file)

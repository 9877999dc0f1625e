"""A date that leaps for a server and its child processes, by libfaketime (Debian: `faketime`). Their monotonic clocks
go on, as those of a machine do whose date is set.

`time.sleep` of Python 3.11 fails under it (libfaketime 0.9.10 takes the moment at which it ends for a date): the
processes of a server on one machine have none.
"""

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
            # Else a wait by the monotonic clock is measured from the date: with a date ahead it ends at once, with one
            # behind it lasts as much longer, and Python's threads wait like this for each other.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def leap_to(self, seconds: float) -> None:
        """So far before (below 0) or after the true date."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+g}\n")
        written.replace(self._file)

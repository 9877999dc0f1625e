"""What a part finds, one record a line of its file, and how all of it is shown."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

COPY, MULTIPLY = "copy", "matmul"  # names of the ceilings


@dataclass(frozen=True)
class Figure:
    """A time, and the least that had to be moved and computed in it."""

    part: str
    case: str
    seconds: float
    bytes: float = 0.0
    flops: float = 0.0

    def share(self, bandwidth: float | None, rate: float | None) -> tuple[float, str] | None:
        """Of the roofline: the time that bytes and operations take at the measured ceilings, over the time taken."""
        if bandwidth is None or rate is None or not (self.bytes or self.flops):
            return None
        moving, computing = self.bytes / bandwidth, self.flops / rate
        return max(moving, computing) / self.seconds, "memory" if moving >= computing else "arithmetic"


@dataclass(frozen=True)
class Check:
    part: str
    case: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Note:
    """Something to know: what was absent, failed, cut off by the limit of time, or looked at."""

    part: str
    text: str
    failed: bool = False


Record = Figure | Check | Note
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Figure, Check, Note)}


class Recorder:
    """Writes each record at once: a part that is cut off, or dies, keeps what it found."""

    def __init__(self, part: str, file: IO[str]) -> None:
        self._part, self._file = part, file

    def figure(self, case: str, seconds: float, *, bytes: float = 0.0, flops: float = 0.0) -> None:
        self._write(Figure(self._part, case, seconds, bytes, flops))

    def check(self, case: str, passed: bool, detail: str) -> None:
        self._write(Check(self._part, case, passed, detail))

    def note(self, text: str, *, failed: bool = False) -> None:
        self._write(Note(self._part, text, failed))

    def _write(self, record: Record) -> None:
        self._file.write(json.dumps({"kind": type(record).__name__, **dataclasses.asdict(record)}) + "\n")
        self._file.flush()


def read_records(path: Path) -> list[Record]:
    """A last line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [KINDS[entry.pop("kind")](**entry) for entry in entries]


def ceilings(records: Sequence[Record]) -> tuple[float | None, float | None]:
    """(bytes/s, operations/s) as measured; None for one that is not."""
    found = {r.case: r for r in records if isinstance(r, Figure) and r.part == "ceilings"}
    copied, multiplied = found.get(COPY), found.get(MULTIPLY)
    return (
        None if copied is None else copied.bytes / copied.seconds,
        None if multiplied is None else multiplied.flops / multiplied.seconds,
    )


def table(records: Sequence[Record]) -> str:
    """Figures with their shares, then checks, then notes, in Markdown."""
    bandwidth, rate = ceilings(records)
    lines = ["| part | case | µs | GB/s | TFLOP/s | share of its ceiling | bound |", "|---|---|---|---|---|---|---|"]
    for r in records:
        if isinstance(r, Figure):
            share = r.share(bandwidth, rate)
            shown = "| not known | |" if share is None else f"| {share[0]:.1%} | {share[1]} |"
            speed = f"{r.bytes / r.seconds / 1e9:,.1f} | {r.flops / r.seconds / 1e12:,.2f}"
            lines.append(f"| {r.part} | {r.case} | {r.seconds * 1e6:,.1f} | {speed} {shown}")
    checks = [r for r in records if isinstance(r, Check)]
    lines += ["", f"{sum(c.passed for c in checks)} of {len(checks)} checks passed"]
    lines += [f"- {'passed' if c.passed else 'FAILED'}: {c.part}, {c.case}: {c.detail}" for c in checks]
    lines += [f"- {r.part}{' FAILED' if r.failed else ''}: {r.text}" for r in records if isinstance(r, Note)]
    return "\n".join(lines)


def as_json(records: Sequence[Record], about: dict[str, Any]) -> str:
    bandwidth, rate = ceilings(records)
    rows = []
    for record in records:
        row = {"kind": type(record).__name__, **dataclasses.asdict(record)}
        if isinstance(record, Figure) and (share := record.share(bandwidth, rate)) is not None:
            row |= {"share": share[0], "bound": share[1]}
        rows.append(row)
    return json.dumps({**about, "bandwidth": bandwidth, "matmul_rate": rate, "records": rows}, indent=2) + "\n"

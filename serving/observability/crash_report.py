"""What is left of a process that failed: a small JSON file for whoever looks into it, without a word of any user's.

It has versions, the exception's type and frames, and the sizes of the last step: no messages of exceptions, which may
repeat what a client wrote, no prompts, no tokens, no variables.
"""

import json
import os
import platform
import time
import traceback
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

MOST_REPORTS = 20  # in the folder; the oldest go
DEFAULT_FOLDER = Path("~/.cache/weft/crashes")
_PACKAGES = ("weft", "jax", "jaxlib", "flax", "numpy", "grpcio", "uvicorn", "starlette")


def write_crash_report(
    folder: Path | None, role: str, error: BaseException, sizes: Mapping[str, float | bool], *, now: float | None = None
) -> Path:
    """The file. Raises OSError. `folder` None: `~/.cache/weft/crashes`."""
    folder = (folder or DEFAULT_FOLDER).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    when = time.gmtime(time.time() if now is None else now)
    report = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", when),
        "role": role,
        "versions": _versions(),
        "failures": [_failure(one) for one in _chain(error)],
        "sizes": dict(sizes),
    }
    path = folder / f"{role}-{time.strftime('%Y%m%dT%H%M%SZ', when)}-{os.getpid()}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for old in sorted(folder.glob("*-*Z-*.json"), key=lambda report: report.stat().st_mtime)[:-MOST_REPORTS]:
        old.unlink(missing_ok=True)
    return path


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _chain(error: BaseException | None) -> list[BaseException]:
    """The exception and what caused it, the last first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _failure(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }

"""`weft api` as a process, over whatever engine listens at the socket of a folder."""

import asyncio
import sys
from pathlib import Path

from serving.child_process import ChildProcess
from serving.lifeline import Status

PATIENCE = 300.0  # seconds; only a broken test waits that long


async def start_api(folder: Path, toml: str) -> tuple[ChildProcess, str]:
    """The process, and where it listens."""
    statuses: asyncio.Queue[Status] = asyncio.Queue()
    lines: list[str] = []
    file = folder / "deployment.toml"
    file.write_text(toml)
    socket = folder / "private" / "engine.sock"
    command = [sys.executable, "-m", "serving", "api", str(file), f"--socket={socket}"]
    child = await ChildProcess.start(command, lines.append, statuses.put_nowait)
    waits = {asyncio.ensure_future(statuses.get()), asyncio.ensure_future(child.wait())}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    status = done.pop().result()
    assert isinstance(status, Status), lines
    return child, status.url

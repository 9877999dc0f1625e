"""Real child processes: their lines, and their end with their supervisor."""

import asyncio
import os
import sys
from pathlib import Path

from serving.child_process import ChildProcess

PATIENCE = 180.0  # seconds; only a broken test waits that long

CHILD = """
import os, signal, sys, time
from serving.lifeline import Lifeline, Status

line = Lifeline(int(sys.argv[sys.argv.index("--lifeline") + 1]))
line.watch()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(f"pid {os.getpid()}", flush=True)
line.report(Status("ready", ready=True, url=sys.argv[1]))
while True:
    signal.pause()
"""


PARENT = """
import asyncio, sys
from serving.child_process import ChildProcess

async def main():
    child = await ChildProcess.start([sys.executable, "-c", sys.argv[1], "url"], print, print)
    print(child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


async def test_children_end_when_the_supervisor_is_killed_outright(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"  # at its end when no process holds it open for writing
    os.mkfifo(fifo)
    child = f"import os; held = os.open({str(fifo)!r}, os.O_WRONLY)\n{CHILD}"
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, child, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    async with asyncio.timeout(PATIENCE):
        alive = await asyncio.to_thread(open, fifo, "rb")
        while b"Status" not in await parent.stdout.readline():
            continue
        parent.kill()
        await parent.wait()
        with alive:
            assert await asyncio.to_thread(alive.read) == b""


async def test_long_lines_and_the_last_words_without_a_newline_are_kept() -> None:
    lines: list[str] = []
    script = "import sys; print('x' * 200000); sys.stdout.write('no newline'); sys.exit(3)"
    child = await ChildProcess.start([sys.executable, "-c", script], lines.append, lambda _: None)
    async with asyncio.timeout(PATIENCE):
        assert await child.wait() == 3
    assert sum(map(len, lines[:-1])) == 200000
    assert child.last_lines[-1] == "no newline"

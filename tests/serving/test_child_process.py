"""Real child processes: their lines, and their end with their supervisor."""

import asyncio
import os
import signal
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


ORPHAN = """
import subprocess, sys, time
orphan = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print(orphan.pid, flush=True)
sys.stdout.write("no newline")
sys.stdout.flush()
time.sleep(1000)
"""


async def test_an_end_is_told_although_what_the_child_started_lives_on_with_its_output() -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    child = await ChildProcess.start([sys.executable, "-c", ORPHAN], lines.put_nowait, lambda _: None)
    async with asyncio.timeout(PATIENCE):
        orphan = int(await lines.get())
        try:
            child.kill()
            assert await child.wait() == -signal.SIGKILL
            os.kill(orphan, 0)
        finally:
            os.kill(orphan, signal.SIGKILL)


async def test_a_line_that_cannot_be_told_holds_up_neither_the_next_nor_the_end() -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        raise OSError("nobody reads")

    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault["exception"]))
    script = "print('x' * 200000); print('y' * 200000)"
    child = await ChildProcess.start([sys.executable, "-c", script], tell, lambda _: None)
    async with asyncio.timeout(PATIENCE):
        assert await child.wait() == 0
    assert len(told) > 1
    assert len(faults) == len(told)

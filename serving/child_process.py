"""One child process of the supervisor: its log lines, its progress, its end."""

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence

from serving.lifeline import Status, decode_status

_KEPT_LINES = 20
_LONGEST_LINE = 64 << 10  # bytes; a longer one is broken up
_LAST_WORDS_SECONDS = 1.0  # how long a dead child's pipes are read, should something else hold them open

# gRPC's C core writes lines of its own form to stderr, among log lines that are promised to be JSON. What it has to
# tell reaches the children's code as errors of their calls. Whoever debugs it sets the variable.
_QUIET = {"GRPC_VERBOSITY": "NONE"}


class ChildProcess:
    """Started by `start`, in a process group of its own: a terminal's Ctrl-C reaches the supervisor alone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process = process
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        on_line: Callable[[str], None],
        on_status: Callable[[Status], None],
    ) -> "ChildProcess":
        """`command` gets `--lifeline FD` appended."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--lifeline",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={**_QUIET, **os.environ},
            )
        child = cls(process)
        lifeline, writer = await asyncio.open_connection(sock=ours)
        assert process.stdout is not None
        child._readers += [
            asyncio.create_task(child._read_lines(process.stdout, on_line)),
            asyncio.create_task(_read_statuses(lifeline, writer, on_status)),
        ]
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, negative for a signal, after the last line was read and nothing of its group is left."""
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses where only a zombie is left
            os.killpg(self._process.pid, signal.SIGKILL)  # what the child itself had started
        if any(not reader.done() for reader in self._readers):
            await asyncio.wait(self._readers, timeout=_LAST_WORDS_SECONDS)
        for reader in self._readers:
            reader.cancel()
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read_lines(self, stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
        rest = b""
        while data := await stream.read(_LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._line(line, on_line)
        if rest:
            self._line(rest, on_line)

    def _line(self, line: bytes, on_line: Callable[[str], None]) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self.last_lines.append(text)
        on_line(text)


async def _read_statuses(
    lifeline: asyncio.StreamReader, writer: asyncio.StreamWriter, on_status: Callable[[Status], None]
) -> None:
    try:
        while line := await lifeline.readline():
            on_status(decode_status(line))
    except ConnectionResetError:
        return  # killed with something unread: the line's end all the same
    finally:
        writer.close()

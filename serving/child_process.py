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

    def __init__(self, transport: asyncio.SubprocessTransport, output: "_Output", lifeline: asyncio.Task[None]) -> None:
        self._transport = transport
        self._output = output
        self._lifeline = lifeline

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        on_line: Callable[[str], None],
        on_status: Callable[[Status], None],
    ) -> "ChildProcess":
        """`command` gets `--lifeline FD` appended. Raises OSError where the system has no room for a process."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.enter_context(ours)
            transport, output = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Output(on_line),
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
            unless_started.pop_all()
        lifeline, writer = await asyncio.open_connection(sock=ours)
        return cls(transport, output, asyncio.create_task(_read_statuses(lifeline, writer, on_status)))

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    @property
    def last_lines(self) -> deque[str]:
        return self._output.last_lines

    async def wait(self) -> int:
        """The exit code, negative for a signal, after the last line was read and nothing of its group is left."""
        await asyncio.wait([self._output.exited])
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses where only a zombie is left
            os.killpg(self.pid, signal.SIGKILL)  # what the child itself had started
        await asyncio.wait([self._output.ended, self._lifeline], timeout=_LAST_WORDS_SECONDS)
        self._lifeline.cancel()
        self._output.end_line()
        self._transport.close()
        code = self._transport.get_returncode()
        assert code is not None
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._transport.send_signal(number)


class _Output(asyncio.SubprocessProtocol):
    """A child's lines, and its end. asyncio's own Process ends when the pipe does, which whatever the child had started
    may hold open for as long as it lives, in a session where no signal of ours reaches it."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.exited: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()  # all that was written is read
        self._on_line = on_line
        self._rest = b""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._line(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.ended.set_result(None)
        self.end_line()

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def end_line(self) -> None:
        """What was written last may have no newline."""
        line, self._rest = self._rest, b""
        if line:
            self._line(line)

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self.last_lines.append(text)
        self._on_line(text)


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

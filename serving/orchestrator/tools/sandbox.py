"""Runs a program that nobody vouches for: bubblewrap's namespaces around it, and limits on all that it can use up.

It sees a read-only /usr, a /proc of its own processes, and a working folder in memory that is gone with it. It has no
network, no capabilities, no user of this machine, and none of this process's environment or files. Time, memory,
processes, file sizes and output are bounded; what it leaves behind is read as untrusted bytes.

Not there: a filter of system calls. Whoever runs strangers' code next to secrets puts a virtual machine around it.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from serving.errors import ConfigError, RequestError
from serving.orchestrator.tools import sandbox_runner
from serving.orchestrator.tools.file_names import plain_names

Outcome = Literal["ended", "time_limit", "memory_limit"]

_NOBODY = 65534
_WATCH_SECONDS = 0.05  # how often the memory of all processes together is looked at
_LONGEST_NAME = 128
_LONGEST_REASON = 200
_NAMES_BYTES = 1 << 20  # around the files that come back: their names, and those of files that do not
_KILLED = 137  # what a shell reports of a process that SIGKILL ended


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    seconds: float = 10.0  # on the clock
    memory_bytes: int = 512 << 20  # of all processes together
    processes: int = 16
    folder_bytes: int = 64 << 20  # of the working folder, and again of /tmp and of /dev/shm; all are in memory
    output_bytes: int = 64 << 10  # kept of stdout, and of stderr
    result_files: int = 100  # that come back
    result_bytes: int = 8 << 20  # of them together
    given_files: int = 16  # that are given to read
    given_bytes: int = 32 << 20  # of them together; they are in memory, beside the working folder's


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    outcome: Outcome
    exit_code: int  # as a shell has it: 128 + n where signal n ended the program
    stdout: str
    stderr: str
    cut: bool  # there was more output than is kept
    files: Mapping[str, bytes] = field(default_factory=dict)  # new or changed, from the working folder itself
    removed: Sequence[str] = ()  # of the files that it might change
    left_out: Mapping[str, str] = field(default_factory=dict)  # files that do not come back, by name, and why
    more_left_out: int = 0  # beside those that are named


class _Results(msgspec.Struct):
    files: list[tuple[str, str]]
    left_out: list[tuple[str, str]] = []
    more_left_out: int = 0
    removed: list[str] = []


class Sandbox:
    """Raises ConfigError where bubblewrap or the interpreter is missing, or for root a way to be somebody else."""

    def __init__(self, limits: SandboxLimits | None = None, interpreter: Path = Path("/usr/bin/python3")) -> None:
        self.limits = limits or SandboxLimits()
        self._interpreter = interpreter
        # As text: where this file lies, the sandbox's user may not be able to read.
        self._runner = Path(sandbox_runner.__file__).read_text(encoding="utf-8")
        self._bwrap = shutil.which("bwrap")
        if self._bwrap is None:
            raise ConfigError("the code interpreter needs bubblewrap: install the package that has `bwrap`")
        self._privileges = _as_nobody() if os.geteuid() == 0 else []
        if not interpreter.is_relative_to("/usr") or not os.access(interpreter, os.X_OK):
            raise ConfigError(f"the code interpreter needs a Python under /usr, and there is none at {interpreter}")

    async def run(
        self,
        code: str,
        files: Mapping[str, bytes] | None = None,
        given: Mapping[str, Path] | None = None,
        earlier: Mapping[str, Path] | None = None,
    ) -> SandboxResult:
        """Runs `code` as a Python program beside `files` and copies of `earlier` ones, which it may change, and copies
        of those `given`, which it may not; of two with one name the given one is there. Raises RequestError for a name
        that is not a plain one, and for a file that is gone."""
        given = given or {}
        files = {name: data for name, data in (files or {}).items() if name not in given}
        earlier = {name: path for name, path in (earlier or {}).items() if name not in given and name not in files}
        for name in (*files, *earlier, *given):
            check_name(name)
        results, theirs = os.pipe()
        try:
            with _opened(given) as readable, _opened(earlier) as copied:
                process = await asyncio.create_subprocess_exec(
                    *self._command(theirs, readable, copied),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(theirs, *readable.values(), *copied.values()),
                    start_new_session=True,
                    env={},
                )
        except BaseException:
            os.close(results)
            raise
        finally:
            os.close(theirs)
        async with _killed_at_the_end(process):
            task = self._task(code, files, list(given), list(earlier))
            return await self._watched(process, task, results, list(given))

    def _command(self, results: int, given: Mapping[str, int], earlier: Mapping[str, int]) -> list[str]:
        size = str(self.limits.folder_bytes)
        assert self._bwrap is not None
        return [
            *self._privileges,
            *(self._bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session"),
            *("--uid", str(_NOBODY), "--gid", str(_NOBODY), "--hostname", "sandbox", "--clearenv"),
            *("--setenv", "PATH", "/usr/bin", "--setenv", "HOME", "/files", "--setenv", "LANG", "C.UTF-8"),
            *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *("--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev"),
            *("--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", "/files", "--chdir", "/files"),
            *("--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
            *("--symlink", "/files", "/mnt/data"),  # where models learnt that their files are
            *(word for name, file in earlier.items() for word in ("--perms", "0644", "--file", str(file), _at(name))),
            *(word for name, file in given.items() for word in _copied(file, _at(name))),
            *("--remount-ro", "/"),
            *("--", str(self._interpreter), "-I", "-c", self._runner, str(results)),
        ]

    def _task(self, code: str, files: Mapping[str, bytes], given: Sequence[str], earlier: Sequence[str]) -> bytes:
        limits = {
            "RLIMIT_AS": self.limits.memory_bytes,
            "RLIMIT_NPROC": self.limits.processes,
            "RLIMIT_CPU": max(1, round(self.limits.seconds) + 1),
            "RLIMIT_FSIZE": self.limits.folder_bytes,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CORE": 0,
        }
        encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
        task = {"code": code, "files": encoded, "given": given, "earlier": earlier, "limits": limits}
        bounds = {"result_files": self.limits.result_files, "result_bytes": self.limits.result_bytes}
        return json.dumps({**task, **bounds}).encode()

    async def _watched(
        self, process: asyncio.subprocess.Process, task: bytes, results: int, given: Sequence[str]
    ) -> SandboxResult:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        limits = self.limits
        reading = [
            asyncio.create_task(_read(process.stdout, limits.output_bytes)),
            asyncio.create_task(_read(process.stderr, limits.output_bytes)),
            asyncio.create_task(_read_pipe(results, 2 * limits.result_bytes + _NAMES_BYTES)),
        ]
        watching = asyncio.create_task(_until_too_much(process.pid, limits.memory_bytes))
        writing = asyncio.create_task(_write(process.stdin, task))
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ending, watching}, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            outcome: Outcome = "ended" if ending.done() else "memory_limit" if watching.done() else "time_limit"
            if outcome != "ended":
                _kill(process)
            code = await ending
            (stdout, cut), (stderr, cut_too), (kept, too_long) = await asyncio.gather(*reading)
        finally:
            for pending in (*reading, watching, writing, ending):
                pending.cancel()
        found = _Results([]) if too_long else _results(kept, limits)
        return SandboxResult(
            outcome=outcome,
            exit_code=code if outcome == "ended" and code >= 0 else _KILLED,
            stdout=stdout.decode("utf-8", "replace"),
            stderr=stderr.decode("utf-8", "replace"),
            cut=cut or cut_too,
            files=_named(found.files, given),
            removed=found.removed,
            left_out={_shown(name): _shown(why) for name, why in found.left_out[: sandbox_runner.NAMED]},
            more_left_out=found.more_left_out,
        )


def _at(name: str) -> str:
    return f"/files/{name}"


def _copied(file: int, to: str) -> tuple[str, ...]:
    """Bubblewrap's words for a copy that nobody inside can write to, rename or remove."""
    return ("--perms", "0444", "--ro-bind-data", str(file), to)


@contextlib.contextmanager
def _opened(given: Mapping[str, Path]) -> Iterator[dict[str, int]]:
    """Descriptors by name. Raises RequestError where a file is gone."""
    with contextlib.ExitStack() as opened:
        found: dict[str, int] = {}
        for name, path in given.items():
            try:
                found[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise RequestError(f"the file {name!r} was deleted", param="files") from None
            opened.callback(os.close, found[name])
        yield found


def _as_nobody() -> list[str]:
    """What root starts bubblewrap with: of root's processes the kernel would count none against a limit. By a program
    of its own, because an event loop that is told of a user forks this process with its threads, or cannot do it."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ConfigError("the code interpreter needs `setpriv` where the server runs as root: install util-linux")
    return [setpriv, f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]


def check_name(name: str) -> None:
    """Raises RequestError for what is not the name of a file in a folder."""
    if not name or len(name) > _LONGEST_NAME or name in (".", "..") or not name.isprintable() or "/" in name:
        raise RequestError(f"a file's name must be printable, without folders, not {name[:100]!r}", param="files")


def _results(encoded: bytes, limits: SandboxLimits) -> _Results:
    """What the runner sent, if it did: its descriptor was the program's to spoil."""
    try:
        found = msgspec.json.decode(encoded, type=_Results)
        size = sum(len(base64.b64decode(text, validate=True)) for _, text in found.files)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return _Results([])
    return found if size <= limits.result_bytes and len(found.files) <= limits.result_files else _Results([])


def _named(files: Sequence[tuple[str, str]], given: Sequence[str]) -> dict[str, bytes]:
    """By plain names, of which none is a given file's; those that were plain keep theirs."""
    contents = {f"file-{number}": text for number, (_, text) in enumerate(files)}
    named = [(file_id, name) for file_id, (name, _) in zip(contents, files, strict=True)]
    plain = [pair for pair in named if _is_plain(pair[1])]
    odd = [pair for pair in named if not _is_plain(pair[1])]
    names = plain_names([*((name, name) for name in given), *plain, *odd])
    return {name: base64.b64decode(contents[file_id]) for name, file_id in names.items() if file_id in contents}


def _is_plain(name: str) -> bool:
    return plain_names([("", name)]) == {name: ""}


def _shown(text: str) -> str:
    """As the model and a client may read what a program could have written."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:_LONGEST_REASON])


async def _read(stream: asyncio.StreamReader, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes, and whether there were more; reads to the end, or the writer would wait forever."""
    kept, cut = bytearray(), False
    while data := await stream.read(1 << 16):
        room = most - len(kept)
        kept += data[:room]
        cut |= len(data) > room
    return bytes(kept), cut


async def _read_pipe(descriptor: int, most: int) -> tuple[bytes, bool]:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await _read(reader, most)
    finally:
        transport.close()


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; its exit code says so
        stream.write(data)
        await stream.drain()
        stream.close()


async def _until_too_much(pid: int, most: int) -> None:
    """Returns once the processes below `pid` hold more than `most` bytes together; the limit of each bounds itself."""
    while _resident(pid) <= most:
        await asyncio.sleep(_WATCH_SECONDS)


def _resident(pid: int) -> int:
    """Bytes that the process and those below it hold, shared pages counted again for each."""
    total, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
            total += int(Path(f"/proc/{current}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            waiting += map(int, Path(f"/proc/{current}/task/{current}/children").read_text().split())
    return total


@contextlib.asynccontextmanager
async def _killed_at_the_end(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """However this ends, also by cancellation, nothing of the program lives on."""
    try:
        yield
    finally:
        _kill(process)
        await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Bubblewrap alone: the program is the first process of its own namespace's, and all of them end with it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)

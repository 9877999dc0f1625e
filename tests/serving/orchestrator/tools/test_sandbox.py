"""Attempts to get out of the sandbox, or to use up the machine, each as the program of somebody who tries."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from serving.errors import ConfigError, RequestError
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits, SandboxResult

LIMITS = SandboxLimits(seconds=60.0, memory_bytes=256 << 20, processes=8, folder_bytes=8 << 20, output_bytes=4096)


async def ran(code: str, files: dict[str, bytes] | None = None, limits: SandboxLimits = LIMITS) -> SandboxResult:
    return await Sandbox(limits).run(code, files)


async def test_a_program_reads_its_files_and_leaves_others() -> None:
    code = "print(open('in.csv').read().upper(), end=''); open('out.txt', 'w').write('done')"
    result = await ran(code, {"in.csv": b"a,b\n"})
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == ("ended", 0, "A,B\n", "")
    assert result.files == {"out.txt": b"done"}


async def test_a_failing_program_says_why() -> None:
    result = await ran("1 / 0")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr


async def test_two_programs_see_nothing_of_each_other() -> None:
    await ran("open('left', 'w').write('x'); open('/tmp/left', 'w').write('x')")
    result = await ran("import os; print(os.listdir('.'), os.path.exists('/tmp/left'))")
    assert result.stdout == "[] False\n"


async def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = f"""
import socket
for target in (("127.0.0.1", {port}), ("1.1.1.1", 53)):
    try:
        socket.create_connection(target, 5)
        print("connected")
    except OSError:
        print("refused")
print([name for _, name in socket.if_nameindex()])
"""
        assert (await ran(code)).stdout == "refused\nrefused\n['lo']\n"


async def test_abstract_sockets_of_this_machine_are_out_of_reach() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0weft-sandbox-{os.getpid()}")
        listener.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0weft-sandbox-{os.getpid()}')"
        assert "ConnectionRefusedError" in (await ran(code)).stderr


async def test_this_machines_files_are_not_there() -> None:
    here = Path(__file__).resolve()
    code = f"""
import os
for path in ("/etc/passwd", "/etc/shadow", "/root", "/home", "/var", "/sys", {str(here)!r}, {str(Path.home())!r}):
    print(os.path.exists(path))
"""
    assert (await ran(code)).stdout.split() == ["False"] * 8


@pytest.mark.parametrize("path", ["/usr/bin/x", "/x", "/dev/x", "/proc/sys/kernel/hostname", "/run"])
async def test_nothing_but_its_own_folders_can_be_written(path: str) -> None:
    result = await ran(f"open({path!r}, 'w').write('x')")
    assert result.exit_code == 1
    assert "Error" in result.stderr


async def test_the_environment_holds_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SECRET", "hunter2")
    code = """
import glob, os
print(sorted(os.environ))
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        print("hunter2" in open(path).read())
    except OSError:
        pass
"""
    first, *rest = (await ran(code)).stdout.splitlines()
    assert first == "['HOME', 'LANG', 'PATH', 'PWD']"
    assert set(rest) <= {"False"}


async def test_other_processes_are_neither_seen_nor_reached() -> None:
    code = f"""
import os
print(os.getuid(), os.getpid() < 10, len([name for name in os.listdir("/proc") if name.isdigit()]) < 10)
for pid in ({os.getpid()}, {os.getppid()}):
    try:
        os.kill(pid, 9)
        print("killed")
    except ProcessLookupError:
        print("not there")
"""
    assert (await ran(code)).stdout == "65534 True True\nnot there\nnot there\n"


async def test_it_gains_no_capabilities_and_no_further_namespaces() -> None:
    code = """
import ctypes, re
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.setuid(0))
print(re.search(r"CapEff:\\s*(\\w+)", open("/proc/self/status").read())[1])
print(re.search(r"NoNewPrivs:\\s*(\\w+)", open("/proc/self/status").read())[1])
"""
    assert (await ran(code)).stdout == "-1 -1 -1\n0000000000000000\n1\n"


async def test_a_fork_bomb_runs_into_its_limit() -> None:
    code = """
import os, time
children = 0
for _ in range(1000):
    try:
        if os.fork() == 0:
            time.sleep(600)
        children += 1
    except BlockingIOError:
        break
print(children < 10)
"""
    result = await ran(code)
    assert (result.outcome, result.stdout) == ("ended", "True\n")


async def test_one_process_cannot_take_more_memory_than_its_limit() -> None:
    result = await ran("x = bytearray(1 << 30)")
    assert "MemoryError" in result.stderr


async def test_many_processes_cannot_take_it_together() -> None:
    code = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        kept = bytearray(b"x") * (100 << 20)
        time.sleep(600)
time.sleep(600)
"""
    result = await ran(code)
    assert (result.outcome, result.exit_code) == ("memory_limit", 137)


async def test_files_in_memory_are_bounded() -> None:
    code = """
for folder in ("/files", "/tmp", "/dev/shm"):
    written = 0
    try:
        for number in range(100):
            with open(f"{folder}/{number}", "wb") as file:
                written += file.write(b"x" * (1 << 20))
    except OSError as error:
        print(error.errno, written <= 8 << 20)
"""
    assert (await ran(code)).stdout == "28 True\n" * 3


async def test_an_endless_program_is_ended() -> None:
    result = await ran("while True: pass", limits=SandboxLimits(seconds=1.0))
    assert (result.outcome, result.exit_code) == ("time_limit", 137)


async def test_what_was_printed_before_the_end_is_kept() -> None:
    code = "import os\nprint('begun', flush=True)\nfor _ in range(2): os.fork()\nkept = bytearray(b'x') * (100 << 20)\n"
    result = await ran(code + "while True: pass")
    assert (result.outcome, result.stdout) == ("memory_limit", "begun\n")


async def test_a_process_left_behind_ends_with_the_program() -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    for descriptor in range(3):
        os.close(descriptor)
    time.sleep(600)
"""
    assert (await ran(code)).outcome == "ended"
    assert not any("65534" in line and "main.py" in line for line in _processes())


async def test_a_cancelled_run_leaves_no_process() -> None:
    running = asyncio.create_task(ran("print('here', flush=True)\nwhile True: pass"))
    while not any("/tmp/main.py" in line for line in _processes()):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    while any("/tmp/main.py" in line for line in _processes()):
        await asyncio.sleep(0)


async def test_long_output_is_cut() -> None:
    result = await ran("for _ in range(5000): print('x' * 1000)")
    assert (result.outcome, len(result.stdout), result.cut) == ("ended", 4096, True)


async def test_output_that_is_no_text_is_replaced() -> None:
    result = await ran("import sys; sys.stdout.buffer.write(b'\\xff\\x00ok')")
    assert result.stdout == "�\x00ok"


async def test_links_are_not_followed_out() -> None:
    code = """
import os
os.symlink("/etc/passwd", "a")
os.symlink("/proc/self/environ", "b")
os.mkfifo("c")
os.mkdir("d")
open("e", "w").write("plain")
"""
    assert (await ran(code)).files == {"e": b"plain"}


async def test_files_that_do_not_come_back_are_named_with_the_reason() -> None:
    code = """
import os
open("kept", "w").write("x")
open("first", "w").write("y")
os.link("first", "second")
os.symlink("kept", "link")
os.mkdir("folder")
open("large", "w").write("x" * 2000)
"""
    result = await ran(code, limits=SandboxLimits(seconds=60.0, result_bytes=1000))
    assert result.files == {"kept": b"x"}
    assert result.left_out == {
        "first": "it is a link, or no regular file",
        "folder": "it is a folder, and files come back from the working folder itself",
        "large": "it has 2000 bytes, and there is room for 999 more",
        "link": "it is a link, or cannot be read",
        "second": "it is a link, or no regular file",
    }


async def test_many_files_are_bounded_and_counted() -> None:
    code = "for number in range(25): open(f'{number:02}', 'w').write('x')"
    result = await ran(code, limits=SandboxLimits(seconds=60.0, result_files=3))
    assert list(result.files) == ["00", "01", "02"]
    assert result.left_out["03"] == "3 files come back, and no more"
    assert (len(result.left_out), result.more_left_out) == (16, 6)


async def test_names_of_files_that_come_back_are_plain_ones(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"given")
    code = "for name in ('a;b', 'a\\nb', b'a\\xff', 'a_b', 'given '): open(name, 'w').write('x')"
    result = await Sandbox(LIMITS).run(code, None, {"given": tmp_path / "given"})
    assert sorted(result.files) == ["a_", "a_b", "a_b-2", "a_b-3", "given-2"]


async def test_an_earlier_file_is_changed_and_removed_in_a_copy_and_comes_back_only_where_it_changed(
    tmp_path: Path,
) -> None:
    for name in ("same", "changed", "removed", "given"):
        (tmp_path / name).write_text(name)
    code = """
import os
open("/mnt/data/changed", "a").write("!")
os.remove("removed")
try:
    os.link("given", "copy")
except OSError as error:
    print(error.errno)
"""
    earlier = {name: tmp_path / name for name in ("same", "changed", "removed")}
    result = await Sandbox(LIMITS).run(code, None, {"given": tmp_path / "given"}, earlier)
    assert (result.files, result.removed) == ({"changed": b"changed!"}, ["removed"])
    assert result.stdout == "18\n"  # a given file gets no second name
    assert (tmp_path / "changed").read_text() == "changed"


async def test_forged_results_are_read_as_nothing() -> None:
    code = """
import glob, os
for path in glob.glob(f"/proc/{os.getppid()}/fd/*"):
    try:
        with open(path, "w") as file:
            file.write('{"files": {"../../escaped": "eA=="}}')
    except OSError:
        pass
os.kill(os.getppid(), 9)
"""
    assert (await ran(code)).files == {}


async def test_more_than_may_come_back_is_left() -> None:
    limits = SandboxLimits(seconds=60.0, result_bytes=1000)
    result = await ran("open('a', 'w').write('x' * 900); open('b', 'w').write('x' * 900)", limits=limits)
    assert list(result.files) == ["a"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "", "..", "a/b", "a\x00b", "x" * 200])
async def test_a_name_that_is_no_plain_one_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="printable, without folders"):
        await ran("pass", {name: b""})


def test_an_interpreter_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="needs a Python under /usr"):
        Sandbox(interpreter=Path("/usr/bin/no-python"))
    with pytest.raises(ConfigError, match="needs a Python under /usr"):
        Sandbox(interpreter=Path("/opt/python3"))


def _processes() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return found


async def test_files_to_read_are_copies_that_a_program_cannot_change_rename_or_remove(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"1,2\n")
    code = """
import os
print(open('a.csv').read(), end='')
for attempt in (lambda: open('a.csv', 'w'), lambda: os.remove('a.csv'), lambda: os.rename('a.csv', 'b'),
                lambda: os.chmod('a.csv', 0o666), lambda: os.replace('mine', 'a.csv')):
    open('mine', 'w').write('x')
    try:
        attempt()
        print('done')
    except OSError:
        print('refused')
print(sorted(os.listdir('/proc/self/fd')), os.path.exists('/files/kept'))
"""
    result = await Sandbox(LIMITS).run(code, {"a.csv": b"shadowed"}, {"a.csv": tmp_path / "kept"})
    descriptors = "['0', '1', '2', '3'] False\n"  # the last is the listing's own
    assert (result.stdout, result.stderr) == ("1,2\n" + "refused\n" * 5 + descriptors, "")
    assert result.files == {"mine": b"x"}
    assert (tmp_path / "kept").read_bytes() == b"1,2\n"


async def test_a_file_that_is_gone_by_the_time_of_the_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"'a\.csv' was deleted"):
        await Sandbox(LIMITS).run("print()", {}, {"a.csv": tmp_path / "gone"})

"""Runs inside the sandbox, as its first process, under whatever Python the sandbox has: the standard library alone.

stdin: one JSON object with `code`, `files` (name -> base64), `earlier` and `given` (names that lie there already, to
change and to read), `limits` (resource name -> number), `result_files` and `result_bytes`. The program's own stdout and
stderr are this process's. Files that it left go to the descriptor named on the command line, as one JSON object.
Everything written here is at the mercy of the program that ran: the reader trusts nothing of it.
"""

import base64
import hashlib
import json
import os
import resource
import stat
import subprocess
import sys
from typing import BinaryIO

PROGRAM = "main.py"
NAMED = 16  # files that do not come back; beyond it they are only counted


def main() -> int:
    task = json.load(sys.stdin)
    for name, number in task["limits"].items():
        resource.setrlimit(getattr(resource, name), (number, number))
    for name, text in task["files"].items():
        with open(name, "wb") as file:
            file.write(base64.b64decode(text))
    before = {}
    for name in (*task["files"], *task["earlier"]):
        with open(name, "rb") as file:
            before[name] = digest_of(file)
    with open(f"/tmp/{PROGRAM}", "w", encoding="utf-8") as file:
        file.write(task["code"])
    results = int(sys.argv[1])
    os.set_inheritable(results, False)
    code = subprocess.call([sys.executable, "-I", "-u", f"/tmp/{PROGRAM}"], stdin=subprocess.DEVNULL)
    found, left_out = changed(before, task["given"], task["result_files"], task["result_bytes"])
    told = {
        "files": found,
        "left_out": left_out[:NAMED],
        "more_left_out": len(left_out[NAMED:]),
        "removed": [name for name in before if not os.path.lexists(name)],
    }
    with os.fdopen(results, "w", encoding="utf-8") as out:
        json.dump(told, out)
    return code if code >= 0 else 128 - code


def changed(before: "dict[str, bytes]", fixed: "list[str]", most: int, room: int) -> "tuple[list, list]":
    """Regular files of the working folder that are new or other than `before`, as (name, base64) while there is room
    for them; and the others, as (name, why). Those that are `fixed` cannot have changed."""
    found, left_out = [], []
    for name in sorted(os.listdir("."), key=os.fsencode):
        if name in fixed:
            continue
        content = content_of(name, before.get(name), room)
        if content is None:
            continue
        if isinstance(content, bytes) and len(found) == most:
            content = f"{most} files come back, and no more"
        told = os.fsencode(name).decode("utf-8", "replace")
        if isinstance(content, bytes):
            room -= len(content)
            found.append((told, base64.b64encode(content).decode()))
        else:
            left_out.append((told, content))
    return found, left_out


def content_of(name: str, before: "bytes | None", room: int) -> "bytes | str | None":
    """None where it is as before; a sentence where it does not come back."""
    try:
        if stat.S_ISDIR(os.lstat(name).st_mode):
            return "it is a folder, and files come back from the working folder itself"
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
                return "it is a link, or no regular file"
            if before is not None and digest_of(file) == before:
                return None
            file.seek(0)
            content = file.read(room + 1)
    except OSError:
        return "it is a link, or cannot be read"
    return content if len(content) <= room else f"it has {state.st_size} bytes, and there is room for {room} more"


def digest_of(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.digest()


if __name__ == "__main__":
    sys.exit(main())

"""Runs inside the sandbox, as its first process, under whatever Python the sandbox has: the standard library alone.

stdin: one JSON object with `code`, `files` (name -> base64), `given` (names that lie there already, to read), `limits`
(resource name -> number) and `result_bytes`. The program's own stdout and stderr are this process's. Files that it left
go to the descriptor named on the command line, as one JSON object. Everything written here is at the mercy of the
program that ran: the reader trusts nothing of it.
"""

import base64
import json
import os
import resource
import subprocess
import sys

PROGRAM = "main.py"


def main() -> int:
    task = json.load(sys.stdin)
    for name, number in task["limits"].items():
        resource.setrlimit(getattr(resource, name), (number, number))
    given = {}
    for name, text in task["files"].items():
        given[name] = base64.b64decode(text)
        with open(name, "wb") as file:
            file.write(given[name])
    with open(f"/tmp/{PROGRAM}", "w", encoding="utf-8") as file:
        file.write(task["code"])
    results = int(sys.argv[1])
    os.set_inheritable(results, False)
    code = subprocess.call([sys.executable, "-I", "-u", f"/tmp/{PROGRAM}"], stdin=subprocess.DEVNULL)
    with os.fdopen(results, "w", encoding="utf-8") as out:
        json.dump({"files": changed(given, task["given"], task["result_bytes"])}, out)
    return code if code >= 0 else 128 - code


def changed(given: "dict[str, bytes]", fixed: "list[str]", room: int) -> "dict[str, str]":
    """Regular files of the working folder that are new or other than given, as base64, while there is room for them.
    Those that are `fixed` cannot have changed."""
    found = {}
    for entry in sorted(os.scandir("."), key=lambda entry: entry.name):
        if entry.name in fixed:
            continue
        if not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_size > room:
            continue
        with open(entry.path, "rb") as file:
            data = file.read(room + 1)
        if given.get(entry.name) != data and len(data) <= room:
            room -= len(data)
            found[entry.name] = base64.b64encode(data).decode()
    return found


if __name__ == "__main__":
    sys.exit(main())

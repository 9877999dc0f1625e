"""Runs on a host: `attached -- COMMAND`, for as long as who started it keeps its standard input open.

The first line of the input is the cluster's secret: in the environment of a process it is its user's own, in a command
line it is everybody's. The input's end is the order to stop, be it because the launcher said so, because it died, or
because the connection did: nothing is left behind.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from serving.engine.cluster import TOKEN_VARIABLE


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] != "--" or len(argv) < 2:
        print("usage: attached -- COMMAND ...", file=sys.stderr)
        return 2
    token = sys.stdin.buffer.readline().decode().strip()
    child = subprocess.Popen(
        argv[1:],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **({TOKEN_VARIABLE: token} if token else {})},
    )
    asked = threading.Event()

    def stop(*_: object) -> None:
        asked.set()
        child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    threading.Thread(target=_at_end_of_input, args=(stop,), daemon=True).start()
    code = child.wait()
    if code == -signal.SIGTERM and asked.is_set():
        return 0  # asked before it could answer, or when it had ended already but for its interpreter
    return code if code >= 0 else 128 - code  # as shells count


def _at_end_of_input(stop: Callable[[], None]) -> None:
    while sys.stdin.buffer.read(1):
        pass
    stop()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # the reading thread would hold the interpreter up

"""The line between the supervisor and a child process: progress goes up, and its end means that the supervisor died.

A socket pair whose child's end is inherited by number. No child outlives its supervisor, not even one killed outright:
the kernel closes the supervisor's end, and the child then ends itself and everything it started.
"""

import os
import signal
import socket
import threading

import msgspec


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child is doing. `done` of `total` where there is something to count."""

    text: str
    done: int = 0
    total: int = 0
    ready: bool = False
    url: str = ""  # where it listens, with `ready`


decode_status = msgspec.json.Decoder(Status).decode


class Lifeline:
    """The child's end, on an inherited file descriptor."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # or this process's own children would keep the line open
        self._socket = socket.socket(fileno=descriptor)

    def report(self, status: Status) -> None:
        try:
            self._socket.sendall(msgspec.json.encode(status) + b"\n")
        except BrokenPipeError:
            return  # the supervisor is gone, and the watching thread is about to end this process

    def watch(self) -> None:
        """Starts a thread that kills this process's group once the supervisor is gone."""
        threading.Thread(target=self._end_with_supervisor, name="lifeline", daemon=True).start()

    def _end_with_supervisor(self) -> None:
        while self._socket.recv(64):
            pass  # the supervisor says nothing; only the end matters
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

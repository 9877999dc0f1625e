"""The adapters of an engine that runs: streams ask for one by its name and wait, while it is loaded beside the steps.

Files are read and matrices sent to the devices on threads of their own; only the start of the copy into a slot is on
the engine's thread, between two steps. Who decides what goes where: `adapter_slots.py`.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from serving.engine.adapter_lease import AdapterLease, AdapterState
from serving.engine.adapter_slots import AdapterCounters, AdapterSlots, Load, Ticket
from serving.engine.inner_folder import inner_folder
from serving.errors import EngineError, EngineUnavailableError, RequestError, UnsupportedError, WeftError
from serving.observability.logs import log_event, log_failure
from serving.settings.adapters import ADAPTER_NAME

log = logging.getLogger(__name__)

OnLoop = Callable[[Callable[[], None]], Awaitable[None]]  # runs it on the engine's thread between two steps


class AdapterFiles(Protocol):
    @property
    def arrays(self) -> Sequence[Any]: ...

    @property
    def digest(self) -> bytes: ...


class AdapterMemory(Protocol):
    """Slots on the devices; see `adapter_stacks.AdapterStacks`. `read` raises ValueError for what is no adapter of this
    model."""

    @property
    def slots(self) -> int: ...

    def read(self, folder: Path) -> AdapterFiles: ...

    def place(self, arrays: Sequence[Any]) -> Any: ...

    def write(self, slot: int, one: Any) -> None: ...


class Adapters:
    """Those of `memory`. Methods may be called on any event loop."""

    def __init__(
        self, memory: AdapterMemory, known: Mapping[str, Path], max_waiting: int, folder: Path | None = None
    ) -> None:
        """`folder` has those that may be loaded later; None: none may."""
        self._memory = memory
        self._folder = folder
        self._slots = AdapterSlots.of(memory.slots, max_waiting)
        for name, folder in known.items():
            self._slots.add(name, folder)
        self._lock = threading.Lock()
        self._answers: dict[int, tuple[Ticket, Future[AdapterLease]]] = {}
        self._loading: set[asyncio.Task[None]] = set()
        self._on_loop: OnLoop | None = None

    def run_on(self, on_loop: OnLoop) -> None:
        """Says how the engine's thread is reached; before anything is asked for."""
        self._on_loop = on_loop

    @property
    def counters(self) -> AdapterCounters:
        return self._slots.counters

    @property
    def waiting(self) -> int:
        """Streams that wait for a slot."""
        return len(self._slots.waiting)

    async def lease(self, name: str) -> AdapterLease:
        """Waits until the adapter is in a slot. To be given back by `release`.

        Raises NotFoundError, OverloadedError; EngineError where its files cannot be read any more.
        """
        with self._lock:
            ticket = self._slots.ask(name)
        return await self._served(ticket)

    def release(self, lease: AdapterLease) -> None:
        with self._lock:
            self._slots.release(lease)
        self._advance()

    async def load(self, name: str, folder: str) -> None:
        """Makes an adapter known after a look at its files. Raises RequestError."""
        if not ADAPTER_NAME.fullmatch(name):
            raise RequestError(
                "an adapter's name has up to 128 letters, digits, and _ . @ -", param="name", code="invalid_value"
            )
        path = self._inside(folder)
        try:
            files = await asyncio.to_thread(self._memory.read, path)
        except ValueError as error:
            raise RequestError(str(error), param="folder", code="invalid_adapter") from error
        with self._lock:
            self._slots.add(name, path, files.digest)

    def unload(self, name: str) -> None:
        """Streams that have it go on, those that wait for it fail. Raises NotFoundError."""
        with self._lock:
            failed = self._slots.remove(name)
        self._answer(failed)
        self._advance()

    async def pin(self, name: str, pinned: bool) -> None:
        """Keeps it in a slot, or no longer; returns once it is there. Raises NotFoundError, RequestError."""
        with self._lock:
            ticket = self._slots.pin(name, pinned)
        if ticket is None:
            self._advance()
            return
        try:
            self.release(await self._served(ticket))
        except BaseException:
            ticket.adapter.pinned = False
            raise

    def states(self) -> tuple[AdapterState, ...]:
        with self._lock:
            places = {id(slot.adapter): slot for slot in self._slots.slots if slot.ready}
            found = []
            for name, adapter in sorted(self._slots.known.items()):
                slot = places.get(id(adapter))
                number, held = (None, 0) if slot is None else (slot.number, slot.held)
                found.append(AdapterState(name=name, slot=number, pinned=adapter.pinned, streams=held))
            return tuple(found)

    def _inside(self, folder: str) -> Path:
        """Raises UnsupportedError, RequestError."""
        if self._folder is None:
            raise UnsupportedError(
                "adapters cannot be loaded while serving: adapters.folder is not set in the deployment", param="folder"
            )
        found = inner_folder(self._folder, folder)
        if found is None:
            raise RequestError(
                f"folder must be the name of a folder inside of adapters.folder, not {folder[:100]!r}",
                param="folder",
                code="invalid_value",
            )
        return found

    async def _served(self, ticket: Ticket) -> AdapterLease:
        answer: Future[AdapterLease] = Future()
        with self._lock:
            if ticket.error is not None:
                raise ticket.error
            if ticket.lease is not None:
                return ticket.lease
            self._answers[id(ticket)] = (ticket, answer)
        self._advance()
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            with self._lock:
                self._answers.pop(id(ticket), None)
                self._slots.leave(ticket)
                lease = ticket.lease
            if lease is not None:  # granted in the moment in which its stream left
                self.release(lease)
            raise

    def _advance(self) -> None:
        """Serves whom it can, and begins what loads are due, on the caller's event loop."""
        with self._lock:
            served, loads = self._slots.advance()
        self._answer(served)
        for load in loads:
            task = asyncio.get_running_loop().create_task(self._load(load))
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)

    async def _load(self, load: Load) -> None:
        error: WeftError = EngineUnavailableError("the engine has stopped", code="engine_stopped")
        digest = None
        try:
            digest = await self._write(load)
        except ValueError as wrong:
            # What is wrong names files of this machine, and is not for clients.
            log_event(log, "an adapter cannot be loaded", level=logging.ERROR, adapter=load.name, reason=str(wrong))
            error = EngineError(f"the adapter {load.name} cannot be loaded", code="invalid_adapter")
        except WeftError as wrong:
            error = wrong
        except Exception as wrong:
            # A device without room, say: it is this adapter's alone, and others wait for the slot.
            log_failure(log, "an adapter's load failed", wrong, adapter=load.name)
            error = EngineError(f"the adapter {load.name} cannot be loaded", code="adapter_failed")
        finally:  # also where the event loop ends: no slot may stay half full
            with self._lock:
                if digest is not None:
                    self._slots.loaded(load, digest)
                    failed: Iterable[Ticket] = ()
                else:
                    failed = self._slots.failed(load, error)
            self._answer(failed)
        self._advance()

    async def _write(self, load: Load) -> bytes:
        """The digest of what is in the slot now."""
        assert self._on_loop is not None
        files = await asyncio.to_thread(self._memory.read, load.folder)
        placed = await asyncio.to_thread(self._memory.place, files.arrays)
        await self._on_loop(lambda: self._memory.write(load.slot, placed))
        return files.digest

    def _answer(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            _, answer = self._answers.pop(id(ticket), (ticket, None))
            if answer is None or not answer.set_running_or_notify_cancel():
                continue
            if ticket.error is not None:
                answer.set_exception(ticket.error)
            elif ticket.lease is not None:
                answer.set_result(ticket.lease)


def no_adapters() -> UnsupportedError:
    return UnsupportedError("this engine has no adapters: adapters.slots is 0 in its deployment", param="model")

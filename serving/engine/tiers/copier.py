"""The threads that carry pages between the device, host memory and disk, while the engine's thread goes on.

One thread each for what leaves the device, what goes there, and what is written to disk. What fails is logged and
reported as not done: a page that is not copied is computed again.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from serving.engine.tiers.exchange import PageExchange, Staged
from serving.engine.tiers.host_pages import HostPages
from serving.engine.tiers.moves import Finished, Loaded, Saved, Saving, Source, Written
from serving.engine.tiers.page_files import PageFiles

log = logging.getLogger(__name__)


class PageCopier:
    """A `moves.PageMover`. `on_finished` is called, from one of the threads, when `finished` has something new."""

    def __init__(
        self,
        exchange: PageExchange,
        host: HostPages,
        files: PageFiles | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` is read by the threads."""
        self._clock = clock
        self.on_finished: Callable[[], None] = lambda: None
        self._exchange = exchange
        self._host = host
        self._files = files
        self._done: deque[Finished] = deque()
        self._staged: dict[int, Staged] = {}  # put there by a thread before it says so
        self._saver = ThreadPoolExecutor(1, "pages-out")
        self._loader = ThreadPoolExecutor(1, "pages-in")
        self._writer = ThreadPoolExecutor(1, "pages-to-disk")

    @property
    def batch(self) -> int:
        return self._exchange.batches[-1]

    def save(self, pages: tuple[Saving, ...]) -> None:
        gathered = self._exchange.gather([saving.page for saving in pages])
        self._saver.submit(self._save, pages, gathered)

    def load(self, ticket: int, sources: tuple[Source, ...]) -> None:
        self._loader.submit(self._load, ticket, sources)

    def land(self, ticket: int, places: tuple[int | None, ...]) -> None:
        self._exchange.scatter(self._staged.pop(ticket), places)

    def drop(self, ticket: int) -> None:
        self._staged.pop(ticket, None)  # there is nothing where none of its pages came

    def write(self, digest: bytes, slot: int) -> None:
        self._writer.submit(self._write, digest, slot)

    def delete(self, digest: bytes) -> None:
        self._writer.submit(self._delete, digest)

    def finished(self) -> list[Finished]:
        done: list[Finished] = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def close(self) -> None:
        """Waits for what is being copied, and for the files of what has come to host memory."""
        self._loader.shutdown(cancel_futures=True)
        self._saver.shutdown()
        self._writer.shutdown()
        if self._files is not None:
            self._files.close()

    def _say(self, message: Finished) -> None:
        self._done.append(message)
        self.on_finished()

    def _save(self, pages: tuple[Saving, ...], gathered: Staged) -> None:
        begin, ok = self._clock(), False
        try:
            self._host.put([saving.slot for saving in pages], [np.asarray(array) for array in gathered])
            ok = True
        except Exception:
            log.exception("pages could not be copied to host memory")
        finally:
            self._say(Saved(tuple(saving.digest for saving in pages), ok, self._clock() - begin))

    def _load(self, ticket: int, sources: tuple[Source, ...]) -> None:
        begin, good, bad = self._clock(), 0, ()
        read = begin
        try:
            bad = tuple(s.digest for s in sources if s.reads_file and not self._read(s))
            read = self._clock()
            there = next((i for i, source in enumerate(sources) if source.digest in bad), len(sources))
            if there:
                size = self._exchange.size_for(there)
                slots = [source.slot for source in sources[:there]]
                self._staged[ticket] = self._exchange.stage(self._host.get(slots, size))
            good = there
        except Exception:
            log.exception("pages could not be copied to the device")
        finally:
            self._say(Loaded(ticket, good, bad, self._clock() - begin, read - begin))

    def _read(self, source: Source) -> bool:
        assert self._files is not None
        return self._files.read(source.digest, self._host.parts(source.slot))

    def _write(self, digest: bytes, slot: int) -> None:
        assert self._files is not None
        begin, ok = self._clock(), False
        try:
            self._files.write(digest, self._host.parts(slot))
            ok = True
        except OSError as error:
            log.warning("a page could not be written to disk: %s", error.strerror or error)
        finally:
            self._say(Written(digest, ok, self._clock() - begin))

    def _delete(self, digest: bytes) -> None:
        assert self._files is not None
        try:
            self._files.delete(digest)
        except OSError as error:
            log.warning("a page's file could not be removed: %s", error.strerror or error)

"""Which pages lie in host memory and on disk, what goes there, and what has to go: kept on the engine's thread.

A page is copied to host memory once: soon after it was published where the device's pages are running out (or where
there is a disk, which is to survive the process), else when it is evicted. It stays there when it goes back to the
device, so that its next eviction costs nothing. With a disk, each page that reaches host memory is written to a file.
Both are bounded in pages and give up the one used longest ago.

Copies in flight are bounded too. What does not fit is not copied: this is a cache. Nor is anything while no page of
those lately computed had been computed before (`reuse.py`).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from serving.engine.tiers.moves import Finished, Loaded, PageMover, Saved, Saving, Source, Tier, Written
from serving.engine.tiers.reuse import Reuse
from serving.engine.tiers.stats import TierCounters, TierStats

BATCHES = 4  # in flight in each direction
_MOST_WRITES = 256  # pages that wait to be written to disk
_EARLY_SHARE = 4  # pages are saved ahead of need while fewer than one in so many are free
_BACKLOG = 2  # times the pages of the device


@dataclass(frozen=True, slots=True)
class Upload:
    """Pages on their way to the device, in the order of a prefix."""

    ticket: int
    sources: tuple[Source, ...]


class PageTiers:
    """`host_pages` slots of host memory; on disk at most `disk_pages` files, 0 for no disk. `on_disk`: what was found
    there, last used last. `page_bytes` is a page's size, for stats."""

    def __init__(
        self,
        mover: PageMover,
        *,
        device_pages: int,
        host_pages: int,
        page_bytes: int,
        disk_pages: int = 0,
        on_disk: Iterable[bytes] = (),
    ) -> None:
        self.counters = {tier: TierCounters() for tier in Tier}
        self.page_bytes = page_bytes
        self._mover = mover
        self._device_pages = device_pages
        self._host_pages = host_pages
        self._disk_pages = disk_pages
        self._free_slots = list(range(host_pages - 1, -1, -1))
        self._host: OrderedDict[bytes, int] = OrderedDict()  # slots, by digest
        self._disk: OrderedDict[bytes, None] = OrderedDict.fromkeys(on_disk)
        self._users: Counter[bytes] = Counter()  # copies in flight that need a page's slot
        self._arriving: set[bytes] = set()  # pages whose slot is still being filled
        self._writing: set[bytes] = set()
        self._published: deque[tuple[int, bytes]] = deque(maxlen=_BACKLOG * device_pages)
        self._saves: list[Saving] = []  # of the plan being made
        self._landings: list[tuple[int, tuple[int | None, ...]]] = []
        self._landed: set[bytes] = set()  # by the plan being made: their pages hold nothing yet
        self._saving = 0  # pages in flight
        self._uploads: dict[int, Upload] = {}
        self._ready: list[tuple[Upload, int]] = []
        self._tickets = 0
        self._doomed: set[bytes] = set()  # forgotten while a copy needed their slot
        self._stale = 0  # uploads before this one were forgotten
        self._reuse = Reuse(device_pages)

    @property
    def is_copying(self) -> bool:
        """Whether a copy is in flight of which nobody has heard yet that it is done."""
        return bool(self._saving or self._uploads or self._writing)

    @property
    def on_disk(self) -> tuple[bytes, ...]:
        """Pages that have a file, the one used longest ago first."""
        return tuple(self._disk)

    def copy_seconds(self, digests: list[bytes]) -> float:
        """The least that bringing these pages to the device has lately been seen to take; 0 where nothing was."""
        on_disk = sum(self.find(digest) is Tier.DISK for digest in digests)
        host, disk = self.counters[Tier.HOST].least_seconds, self.counters[Tier.DISK].least_seconds
        return host * len(digests) + disk * on_disk

    def find(self, digest: bytes) -> Tier | None:
        """The fastest tier below the device that has the page; None also while it is on its way to host memory."""
        if digest in self._host:
            return None if digest in self._arriving or digest in self._doomed else Tier.HOST
        return Tier.DISK if digest in self._disk else None

    # What the pool reports.

    def published(self, page: int, digest: bytes) -> None:
        """`page` holds what `digest` says once the plan being made has run."""
        self._published.append((page, digest))
        self._reuse.came(digest, brought=digest in self._landed)

    def evicted(self, page: int, digest: bytes) -> None:
        """`page` is about to be written by the plan being made."""
        if digest in self._host:
            self._host.move_to_end(digest)
        elif not self._reuse.is_worth_copying:
            self.counters[Tier.HOST].skipped += 1
        elif digest not in self._landed and not self._save(page, digest):
            self.counters[Tier.HOST].lost += 1

    # What a plan does.

    def begin_plan(self, free_pages: int, page_of: Callable[[bytes], int | None]) -> None:
        """Hears of what has come about, and begins copies. `free_pages` are those of the pool that hold nothing;
        `page_of` says where a published page is now."""
        for message in self._mover.finished():
            self._hear(message)
        if not self._reuse.is_worth_copying:
            return
        if not self._disk_pages and free_pages * _EARLY_SHARE > self._device_pages:
            return
        while self._published:
            page, digest = self._published[0]
            if page_of(digest) == page and digest not in self._host and not self._save(page, digest):
                return
            self._published.popleft()

    def fetch(self, digests: list[bytes]) -> Upload | None:
        """Begins to bring the first of these pages to the device, in their order; as many as there is room for."""
        room = min(self._mover.batch, BATCHES * self._mover.batch - sum(len(u.sources) for u in self._uploads.values()))
        sources: list[Source] = []
        for digest in digests[: max(room, 0)]:
            tier = self.find(digest)
            slot = self._host.get(digest) if tier is Tier.HOST else None
            if tier is Tier.DISK:
                slot = self._slot_for(digest)
                self._disk.move_to_end(digest)
            if slot is None:
                break
            self._host.move_to_end(digest)
            self._users[digest] += 1
            sources.append(Source(digest, slot, tier is Tier.DISK))
        if not sources:
            return None
        upload = Upload(self._tickets, tuple(sources))
        self._arriving.update(source.digest for source in sources if source.reads_file)
        self._tickets += 1
        self._uploads[upload.ticket] = upload
        self._mover.load(upload.ticket, upload.sources)
        return upload

    def take_ready(self) -> list[tuple[Upload, int]]:
        """Uploads that wait to be landed or dropped, with how many of their pages are there."""
        ready, self._ready = self._ready, []
        return [(upload, 0 if upload.ticket < self._stale else good) for upload, good in ready]

    def land(self, upload: Upload, places: tuple[int | None, ...]) -> None:
        """Has the pages of an upload written to `places` before the plan being made."""
        del self._uploads[upload.ticket]
        self._landings.append((upload.ticket, places))
        self._landed.update(source.digest for source in upload.sources)

    def drop(self, upload: Upload) -> None:
        del self._uploads[upload.ticket]
        self._mover.drop(upload.ticket)

    def run_moves(self) -> None:
        """Queues what the plan needs on the device; to be called after a plan was made and before it is dispatched."""
        for begin in range(0, len(self._saves), self._mover.batch):
            self._mover.save(tuple(self._saves[begin : begin + self._mover.batch]))
        for ticket, places in self._landings:
            self._mover.land(ticket, places)
        self._saves, self._landings = [], []
        self._landed.clear()

    def forget(self) -> None:
        """Empties all tiers: their pages were computed with weights that are gone. Copies in flight come to nothing."""
        self._published.clear()
        self._reuse.forget()
        self._stale = self._tickets
        self._doomed = {digest for digest in self._host if self._users[digest]}
        for digest in [digest for digest in self._host if digest not in self._doomed]:
            self._free_slots.append(self._host.pop(digest))
        for digest in self._disk:
            self._mover.delete(digest)
        self._disk.clear()

    def stats(self) -> tuple[TierStats, ...]:
        pages = {Tier.HOST: len(self._host), Tier.DISK: len(self._disk)}
        room = {Tier.HOST: self._host_pages, Tier.DISK: self._disk_pages}
        return tuple(
            self.counters[tier].stats(tier, pages[tier], room[tier], self.page_bytes)
            for tier in (Tier.HOST, Tier.DISK)
            if room[tier]
        )

    def call_on_news(self, call: Callable[[], None]) -> None:
        """`call` is called, from another thread, when a copy is done that the next plan should hear of."""
        self._mover.on_finished = call

    def close(self) -> None:
        self._mover.close()

    def check(self) -> None:
        """Raises AssertionError where slots and copies do not add up. For tests: visits everything."""
        slots = [*self._free_slots, *self._host.values()]
        assert sorted(slots) == list(range(self._host_pages)), "a slot leaked or was given away twice"
        assert all(count > 0 for count in self._users.values()), "a page's slot is left more often than it was taken"
        assert set(self._users) <= set(self._host), "a copy needs a slot that was given up"
        assert self._arriving <= set(self._users), "nobody fills a slot that is waited for"
        assert self._doomed <= set(self._users), "nobody will give up a page that nobody can find"
        assert len(self._disk) <= self._disk_pages, "more files than the disk may have"
        sources = Counter(source.digest for upload in self._uploads.values() for source in upload.sources)
        assert sum(sources.values()) + self._saving <= 2 * BATCHES * self._mover.batch

    def _save(self, page: int, digest: bytes) -> bool:
        """Has a page copied to host memory before the plan being made; False where there is no room for it now."""
        if digest in self._landed or self._saving >= BATCHES * self._mover.batch:
            return False
        slot = self._slot_for(digest)
        if slot is None:
            return False
        self._arriving.add(digest)
        self._users[digest] += 1
        self._saving += 1
        self._saves.append(Saving(digest, page, slot))
        return True

    def _slot_for(self, digest: bytes) -> int | None:
        """A slot for a page that has none; None where copies in flight need all of them."""
        if not self._free_slots:
            oldest = next((digest for digest in self._host if not self._users[digest]), None)
            if oldest is None:
                return None
            self._free_slots.append(self._host.pop(oldest))
        slot = self._host[digest] = self._free_slots.pop()
        return slot

    def _hear(self, message: Finished) -> None:
        match message:
            case Saved(digests, ok, seconds):
                self._saving -= len(digests)
                self.counters[Tier.HOST].came(len(digests) if ok else 0, seconds)
                for digest in digests:
                    self._arrived(digest, ok=ok)
            case Loaded():
                self._hear_loaded(message)
            case Written(digest, ok, seconds):
                self.counters[Tier.DISK].came(int(ok), seconds)
                self._writing.discard(digest)
                doomed = digest in self._doomed
                self._leave(digest)
                if ok and doomed:
                    self._mover.delete(digest)
                elif ok:
                    self._keep_file(digest)
                else:
                    self.counters[Tier.DISK].lost += 1

    def _hear_loaded(self, message: Loaded) -> None:
        upload = self._uploads[message.ticket]
        bad = set(message.bad)
        self.counters[Tier.HOST].went(message.good, message.seconds - message.file_seconds)
        read = [source.digest for source in upload.sources if source.reads_file]
        self.counters[Tier.DISK].went(len(read) - len(bad), message.file_seconds)
        self.counters[Tier.DISK].damaged += len(bad)
        for source in upload.sources:
            if source.digest in bad:
                self._disk.pop(source.digest, None)
            if source.reads_file:
                self._arrived(source.digest, ok=source.digest not in bad)
            else:
                self._leave(source.digest)
        self._ready.append((upload, message.good))

    def _arrived(self, digest: bytes, *, ok: bool) -> None:
        """A slot was filled, or could not be."""
        self._arriving.discard(digest)
        if not ok:
            self._doomed.add(digest)
        self._leave(digest)
        room = self._disk_pages and len(self._writing) < _MOST_WRITES
        if room and digest in self._host and digest not in self._disk and digest not in self._writing:
            self._writing.add(digest)
            self._users[digest] += 1
            self._mover.write(digest, self._host[digest])

    def _leave(self, digest: bytes) -> None:
        """A copy needs the page's slot no more."""
        self._users[digest] -= 1
        if not self._users[digest]:
            del self._users[digest]
            if digest in self._doomed:
                self._doomed.remove(digest)
                self._free_slots.append(self._host.pop(digest))

    def _keep_file(self, digest: bytes) -> None:
        self._disk[digest] = None
        while len(self._disk) > self._disk_pages:
            oldest, _ = self._disk.popitem(last=False)
            self._mover.delete(oldest)

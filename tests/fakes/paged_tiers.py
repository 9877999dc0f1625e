"""Host memory and a disk beside a `PagedDevice`: copies that take their time, fail now and then, and trust nobody."""

import random
from collections.abc import Callable

from serving.engine.tiers.moves import Finished, Loaded, Saved, Saving, Source, Written
from tests.fakes.paged_device import PagedDevice


class FakeMover:
    """What happens on the device waits in `queued`, in order, until the test runs it there; what threads do comes
    about after a random number of looks. A slot holds what a page held, so that a wrong one is found by the device."""

    def __init__(
        self,
        device: PagedDevice,
        rng: random.Random,
        *,
        batch: int,
        damage: float,
        longest: int,
        files: dict[bytes, tuple[int, ...]],
    ) -> None:
        self.batch = batch
        self.on_finished: Callable[[], None] = lambda: None
        self.queued: list[Callable[[], None]] = []
        self.files = files
        self._device = device
        self._rng = rng
        self._damage = damage
        self._longest = longest
        self._slots: dict[int, tuple[int, ...]] = {}
        self._filling: set[int] = set()
        self._staged: dict[int, list[tuple[int, ...]]] = {}
        self._coming: list[tuple[int, Callable[[], Finished]]] = []  # looks that are left, and what is then done

    def save(self, pages: tuple[Saving, ...]) -> None:
        assert 0 < len(pages) <= self.batch
        for saving in pages:
            assert saving.slot not in self._filling, "two copies fill one slot"
            self._filling.add(saving.slot)
        self.queued.append(lambda: self._gather(pages))

    def _gather(self, pages: tuple[Saving, ...]) -> None:
        held = [self._device.read_page(saving.page) for saving in pages]

        def copied() -> Saved:
            for saving, contents in zip(pages, held, strict=True):
                self._slots[saving.slot] = contents
                self._filling.remove(saving.slot)
            return Saved(tuple(saving.digest for saving in pages), True, 0.001)

        self._later(copied)

    def load(self, ticket: int, sources: tuple[Source, ...]) -> None:
        assert 0 < len(sources) <= self.batch
        for source in sources:
            assert source.slot not in self._filling, "a slot is read that is still being filled"
            if source.reads_file:
                self._filling.add(source.slot)

        def loaded() -> Loaded:
            bad = []
            for source in sources:
                if source.reads_file:
                    self._filling.remove(source.slot)
                    contents = self.files.get(source.digest)
                    if contents is None or self._rng.random() < self._damage:
                        self.files.pop(source.digest, None)
                        bad.append(source.digest)
                    else:
                        self._slots[source.slot] = contents
            good = next((i for i, source in enumerate(sources) if source.digest in bad), len(sources))
            self._staged[ticket] = [self._slots[source.slot] for source in sources[:good]]
            return Loaded(ticket, good, tuple(bad), 0.001)

        self._later(loaded)

    def land(self, ticket: int, places: tuple[int | None, ...]) -> None:
        staged = self._staged.pop(ticket)
        for page, contents in zip(places, staged, strict=False):
            if page is not None:
                self.queued.append(lambda page=page, contents=contents: self._device.write_page(page, contents))

    def drop(self, ticket: int) -> None:
        del self._staged[ticket]

    def write(self, digest: bytes, slot: int) -> None:
        assert slot not in self._filling

        def written() -> Written:
            ok = self._rng.random() >= self._damage / 8
            if ok:
                self.files[digest] = self._slots[slot]
            return Written(digest, ok, 0.001)

        self._later(written)

    def delete(self, digest: bytes) -> None:
        self.files.pop(digest, None)

    def take_queued(self) -> list[Callable[[], None]]:
        queued, self.queued = self.queued, []
        return queued

    def finished(self) -> list[Finished]:
        done = [act for looks, act in self._coming if looks <= 0]
        self._coming = [(looks - 1, act) for looks, act in self._coming if looks > 0]
        return [act() for act in done]

    def close(self) -> None:
        self._coming.clear()

    def _later(self, act: Callable[[], Finished]) -> None:
        self._coming.append((self._rng.randint(0, self._longest), act))

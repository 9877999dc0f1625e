"""What goes to which tier, and what has to go: decided without a device."""

import random

import pytest

from serving.engine.tiers.moves import Tier
from serving.engine.tiers.page_tiers import BATCHES, PageTiers
from tests.fakes.paged_device import PagedDevice
from tests.fakes.paged_tiers import FakeMover

DEVICE_PAGES = 16


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Tiers:
    """With a device whose page n holds n."""

    def __init__(self, *, host_pages: int = 8, disk_pages: int = 0, batch: int = 2, damage: float = 0.0) -> None:
        device = PagedDevice(num_pages=DEVICE_PAGES, page_size=1, num_rows=1, max_tokens=1)
        for page in range(DEVICE_PAGES):
            device.write_page(page, (page,))
        self.device = device
        self.files: dict[bytes, tuple[int, ...]] = {}
        self.mover = FakeMover(device, random.Random(1), batch=batch, damage=damage, longest=0, files=self.files)
        self.tiers = PageTiers(
            self.mover, device_pages=DEVICE_PAGES, host_pages=host_pages, page_bytes=1, disk_pages=disk_pages
        )

    def plan(self, *evicted: int, free: int = DEVICE_PAGES) -> None:
        """A plan that evicts these pages, and the device running it."""
        self.tiers.begin_plan(free, lambda name: int.from_bytes(name, "big"))
        for page in evicted:
            self.tiers.evicted(page, digest(page))
        self.tiers.run_moves()
        for act in self.mover.take_queued():
            act()
        self.tiers.check()

    def on(self, tier: Tier) -> list[int]:
        return [page for page in range(DEVICE_PAGES) if self.tiers.find(digest(page)) is tier]


def test_an_evicted_page_is_found_once_it_has_arrived() -> None:
    tiers = Tiers()
    tiers.plan(3)
    assert tiers.tiers.find(digest(3)) is None
    tiers.plan()
    assert tiers.tiers.find(digest(3)) is Tier.HOST
    assert not tiers.tiers.is_copying


def test_a_page_that_is_there_is_not_copied_again() -> None:
    tiers = Tiers()
    for _ in range(3):
        tiers.plan(3)
    assert tiers.tiers.counters[Tier.HOST].pages_in == 1


def test_host_memory_gives_up_what_was_used_longest_ago() -> None:
    tiers = Tiers(host_pages=4)
    for page in (1, 2, 3, 4, 1, 5):
        tiers.plan(page)
    tiers.plan()
    assert tiers.on(Tier.HOST) == [1, 3, 4, 5]


def test_copies_in_flight_are_bounded_and_what_does_not_fit_is_counted() -> None:
    tiers = Tiers(host_pages=16)
    tiers.plan(*range(BATCHES * 2 + 3))
    tiers.plan()
    assert tiers.on(Tier.HOST) == [*range(BATCHES * 2)]
    assert tiers.tiers.counters[Tier.HOST].lost == 3


@pytest.mark.parametrize(("free", "saved"), [(DEVICE_PAGES, []), (1, [1, 2])])
def test_pages_are_saved_ahead_where_the_device_is_nearly_full(free: int, saved: list[int]) -> None:
    tiers = Tiers()
    for page in (1, 2):
        tiers.tiers.published(page, digest(page))
    for _ in range(2):
        tiers.plan(free=free)
    assert tiers.on(Tier.HOST) == saved


def test_with_a_disk_every_page_gets_its_file_and_the_oldest_go() -> None:
    tiers = Tiers(host_pages=4, disk_pages=6)
    for page in range(10):
        tiers.tiers.published(page, digest(page))
        for _ in range(3):
            tiers.plan()
    assert tiers.on(Tier.HOST) == [6, 7, 8, 9]
    assert tiers.on(Tier.DISK) == [4, 5]
    assert tiers.files == {digest(page): (page,) for page in range(4, 10)}


def test_an_upload_brings_pages_of_both_tiers_in_their_order_and_stops_at_a_damaged_file() -> None:
    tiers = Tiers(host_pages=4, disk_pages=12, batch=4, damage=1.0)
    tiers.tiers.published(9, digest(9))
    for _ in range(3):
        tiers.plan()
    tiers.tiers._disk[digest(8)] = None  # a file that is lost
    upload = tiers.tiers.fetch([digest(9), digest(8), digest(7)])
    assert upload is not None
    assert [source.reads_file for source in upload.sources] == [False, True]
    tiers.plan()
    assert tiers.tiers.take_ready() == [(upload, 1)]
    tiers.tiers.land(upload, (2, None))
    tiers.plan()
    assert tiers.device.read_page(2) == (9,)
    assert tiers.tiers.find(digest(8)) is None
    assert tiers.tiers.counters[Tier.DISK].damaged == 1


def test_a_page_that_lands_in_a_plan_is_not_saved_by_it() -> None:
    tiers = Tiers(host_pages=4)
    tiers.plan(3)
    tiers.plan()
    upload = tiers.tiers.fetch([digest(3)])
    assert upload is not None
    tiers.tiers.begin_plan(DEVICE_PAGES, lambda name: None)
    assert tiers.tiers.take_ready() == [(upload, 1)]
    tiers.tiers.land(upload, (5,))
    for page in (10, 11, 12, 13):  # host memory forgets it meanwhile
        tiers.tiers.evicted(page, digest(page))
    assert tiers.tiers.find(digest(3)) is None
    tiers.tiers.evicted(5, digest(3))
    assert digest(3) not in {saving.digest for saving in tiers.tiers._saves}
    tiers.plan()
    assert tiers.device.read_page(5) == (3,)


def test_what_is_forgotten_is_found_nowhere_and_nothing_leaks() -> None:
    tiers = Tiers(host_pages=8, disk_pages=8)
    for page in range(4):
        tiers.tiers.published(page, digest(page))
    tiers.plan()
    tiers.plan()
    upload = tiers.tiers.fetch([digest(0), digest(1)])
    assert upload is not None
    tiers.tiers.forget()
    assert not tiers.on(Tier.HOST)
    for _ in range(4):
        tiers.plan()
        for ready, good in tiers.tiers.take_ready():
            assert good == 0
            tiers.tiers.drop(ready)
    assert not tiers.on(Tier.HOST) + tiers.on(Tier.DISK)
    assert tiers.files == {}
    assert not tiers.tiers.is_copying


def test_what_is_never_asked_for_again_is_not_copied_until_something_is() -> None:
    tiers = Tiers(host_pages=8, disk_pages=8)
    for stranger in range(1000, 1200):
        tiers.tiers.published(0, digest(stranger))
    tiers.plan(3)
    tiers.plan()
    assert tiers.on(Tier.HOST) == []
    assert tiers.tiers.counters[Tier.HOST].skipped == 1
    for known in range(1000, 1010):
        tiers.tiers.published(0, digest(known))
    tiers.plan(3)
    tiers.plan()
    assert tiers.tiers.find(digest(3)) is Tier.HOST

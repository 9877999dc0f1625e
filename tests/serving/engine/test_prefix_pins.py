"""A pinned prefix stays in the cache for its time, whatever else needs pages, and never takes what requests need."""

from typing import Any

import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.prefix_pins import PrefixPins
from serving.errors import OverloadedError, RequestError
from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler

PREFIX = (1, 2, 3, 4, 5, 6, 7, 0, 1)  # two whole pages of four


def _driven(num_pages: int = 16, **limits: object) -> DrivenScheduler:
    return DrivenScheduler(num_pages=num_pages, page_size=4, max_model_len=24, **limits)  # pyright: ignore


def _pin(driven: DrivenScheduler, seconds: float = 1000.0, salt: str = "", name: str = "tools") -> tuple[int, int]:
    pinned = driven.scheduler.pin(name, PREFIX, salt=salt, seconds=seconds, now=driven.now)
    driven.scheduler.check()
    return pinned.pages, pinned.held


def _flood(driven: DrivenScheduler, start: int = 0) -> None:
    """Streams that take every page that can be had, one after the other."""
    for number in range(start, start + 8):
        prompt = tuple((number + i * number + i * i) % VOCAB_SIZE for i in range(20))
        driven.add(f"flood-{number}", prompt, max_tokens=3, salt="flood")
    while driven.scheduler.has_requests or driven.in_flight:
        driven.step()


def _hit(driven: DrivenScheduler, name: str, salt: str = "") -> int | None:
    driven.add(name, (*PREFIX, 5), max_tokens=2, salt=salt)
    while driven.scheduler.has_requests or driven.in_flight:
        driven.step()
    return driven.events[name][0].cached_tokens


def test_pages_that_are_cached_are_held_through_a_flood_until_the_pin_expires() -> None:
    driven = _driven()
    _hit(driven, "first")
    assert _pin(driven, seconds=500.0) == (2, 2)
    _flood(driven)
    assert driven.now < 500
    assert _hit(driven, "second") == 8
    driven.now = 1000.0
    _flood(driven, start=8)
    assert driven.scheduler.stats.pinned_pages == driven.scheduler.stats.used_pages == 0
    assert _hit(driven, "third") == 0


def test_pages_that_nobody_has_computed_are_held_once_a_stream_has() -> None:
    driven = _driven()
    assert _pin(driven) == (2, 0)
    assert _hit(driven, "first") == 0
    _flood(driven)
    assert _hit(driven, "second") == 8


def test_another_salt_is_another_prefix() -> None:
    driven = _driven()
    _hit(driven, "first", salt="theirs")
    assert _pin(driven, salt="ours") == (2, 0)
    assert _pin(driven, salt="theirs") == (2, 2)  # the name now pins these


def test_an_unpinned_prefix_goes_back_to_the_cache() -> None:
    driven = _driven()
    _hit(driven, "first")
    _pin(driven)
    assert driven.scheduler.unpin("tools", driven.now)
    assert not driven.scheduler.unpin("tools", driven.now)
    driven.scheduler.check()
    assert _hit(driven, "second") == 8
    _flood(driven)
    assert _hit(driven, "third") == 0


def test_pins_never_take_what_the_longest_request_needs() -> None:
    driven = _driven(num_pages=8)  # the longest needs 6: pins may hold 2
    _pin(driven)
    with pytest.raises(OverloadedError) as refusal:
        _pin(driven, name="another")
    assert refusal.value.code == "pins_full"
    _hit(driven, "first")
    longest = driven.add("longest", tuple(i % 3 for i in range(20)), max_tokens=4)
    while driven.scheduler.has_requests or driven.in_flight:
        driven.step()
    assert driven.tokens("longest") == expected_stream(longest, 24).token_ids


def test_a_pin_whose_time_is_over_counts_no_more_though_no_step_came_since() -> None:
    driven = _driven()
    pin: dict[str, Any] = {"salt": "", "seconds": 1.0, "owner": "ada", "most": 1}
    driven.scheduler.pin("one", PREFIX, now=0.0, **pin)
    assert [pinned.seconds for pinned in driven.scheduler.pinned("ada", 0.5)] == [0.5]
    assert driven.scheduler.pinned("ada", 2.0) == []
    driven.scheduler.pin("two", PREFIX, now=2.0, **pin)
    driven.scheduler.pin("three", PREFIX, now=4.0, **pin)
    assert not driven.scheduler.unpin("three", 6.0, owner="ada")


def test_two_pins_of_one_prefix_let_go_one_by_one() -> None:
    driven = _driven()
    _hit(driven, "first")
    _pin(driven, name="one")
    _pin(driven, name="two")
    driven.scheduler.unpin("one", driven.now)
    _flood(driven)
    assert _hit(driven, "second") == 8


@pytest.mark.parametrize(
    ("param", "arguments"),
    [
        ("token_ids", {"token_ids": (1, 2, 3)}),
        ("token_ids", {"token_ids": (1, 2, 3, 99)}),
        ("seconds", {"seconds": 0.0}),
        ("seconds", {"seconds": float("inf")}),
        ("name", {"name": ""}),
    ],
)
def test_a_pin_that_cannot_be_is_refused_by_field(param: str, arguments: dict[str, object]) -> None:
    given = {"name": "n", "token_ids": PREFIX, "salt": "", "seconds": 1.0, "now": 0.0} | arguments
    with pytest.raises(RequestError) as refusal:
        _driven().scheduler.pin(**given)  # pyright: ignore
    assert refusal.value.param == param


def test_without_a_prefix_cache_nothing_can_be_pinned() -> None:
    pins = PrefixPins(BlockPool(64, 4, prefix_caching=False), reserve=1)
    with pytest.raises(RequestError) as refusal:
        pins.pin("n", PREFIX, "", 1.0)
    assert refusal.value.code == "pin_refused"

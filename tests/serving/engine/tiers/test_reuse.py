from serving.engine.tiers.reuse import Reuse

DEVICE_PAGES = 256


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def computed(reuse: Reuse, numbers: range) -> None:
    for number in numbers:
        reuse.came(name(number), brought=False)


def test_pages_are_copied_until_it_is_seen_that_none_comes_back() -> None:
    reuse = Reuse(DEVICE_PAGES)
    computed(reuse, range(511))
    assert reuse.is_worth_copying
    computed(reuse, range(511, 512))
    assert not reuse.is_worth_copying


def test_one_page_in_64_that_comes_back_is_enough_and_older_ones_are_forgotten() -> None:
    reuse = Reuse(DEVICE_PAGES)
    computed(reuse, range(512))
    computed(reuse, range(7))
    assert not reuse.is_worth_copying
    computed(reuse, range(7, 8))
    assert reuse.is_worth_copying
    computed(reuse, range(1000, 1510))
    assert not reuse.is_worth_copying


def test_a_page_that_a_tier_brought_has_come_back_although_its_name_is_new() -> None:
    reuse = Reuse(DEVICE_PAGES)
    for number in range(600):
        reuse.came(name(number), brought=number % 50 == 0)
    assert reuse.is_worth_copying


def test_after_new_weights_no_page_has_been_there() -> None:
    reuse = Reuse(DEVICE_PAGES)
    computed(reuse, range(600))
    reuse.forget()
    computed(reuse, range(600))
    assert not reuse.is_worth_copying

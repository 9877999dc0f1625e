from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.window import (
    WINDOW_SECONDS,
    Slots,
    forget_old,
    give_back,
    seconds_until,
    slot_of,
    state_of,
    take,
)

LIMIT = 20
steps = st.lists(st.tuples(st.floats(0, 40, allow_nan=False), st.integers(1, LIMIT)), max_size=60)


def taken(asked: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """(when, how much) of those that were let through, one after the other."""
    slots: Slots = {}
    through, now = [], 1000.0
    for pause, amount in asked:
        now += pause
        forget_old(slots, now)
        if seconds_until(slots, LIMIT, amount, now) == 0:
            take(slots, amount, slot_of(now))
            through.append((now, amount))
    return through


@given(steps)
def test_no_sixty_seconds_ever_see_more_than_the_limit(asked: list[tuple[float, int]]) -> None:
    through = taken(asked)
    for start, _ in through:
        assert sum(amount for when, amount in through if start <= when < start + WINDOW_SECONDS) <= LIMIT


@given(steps)
def test_what_was_refused_fits_after_the_seconds_that_were_told_and_not_a_second_earlier(
    asked: list[tuple[float, int]],
) -> None:
    slots: Slots = {}
    now = 1000.0
    for pause, amount in asked:
        now += pause
        forget_old(slots, now)
        wait = seconds_until(slots, LIMIT, amount, now)
        if wait == 0:
            take(slots, amount, slot_of(now))
            continue
        for later, fits in ((now + wait + 1e-6, True), (now + wait - 1 - 1e-6, False)):
            if later <= now:
                continue
            then = dict(slots)
            forget_old(then, later)
            assert (seconds_until(then, LIMIT, amount, later) == 0) == fits


@given(steps, st.integers(1, LIMIT), st.integers(0, LIMIT))
def test_what_is_given_back_is_as_if_it_had_never_been_taken(
    asked: list[tuple[float, int]], amount: int, used: int
) -> None:
    slots: Slots = {}
    for when, before in taken(asked):
        take(slots, before, slot_of(when))
    with_less = dict(slots)
    slot = slot_of(1010.0)
    take(slots, amount, slot)
    kept = min(used, amount)
    give_back(slots, amount - kept, slot)
    take(with_less, kept, slot)
    assert slots == with_less


def test_a_steady_rate_at_the_limit_is_not_refused() -> None:
    """One each three seconds is twenty a minute: the 61st slot costs one place in sixty, no more."""
    assert len(taken([(3.06, 1)] * 100)) == 100


def test_the_state_says_what_is_left_and_when_all_is_free_again() -> None:
    slots: Slots = {}
    take(slots, 5, 1000)
    take(slots, 3, 1010)
    state = state_of(slots, LIMIT, 1020.5)
    assert (state.used, state.remaining, state.reset_seconds) == (8, 12, 1010 + 61 - 1020.5)

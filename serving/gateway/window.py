"""A limit per minute that holds in every minute, and not from one full minute to the next.

Time is cut into slots of one second, and each slot knows what was taken in it. What counts is the sum over this slot
and the 60 before it: whatever 60 seconds one looks at lie within 61 slots, so no more than the limit was taken in them.
(A token bucket that fills at the same rate lets twice as much through in its first minute.) What is given back leaves
the slot in which it was taken, as if it had never been.
"""

import math
from dataclasses import dataclass

WINDOW_SECONDS = 60
_SLOTS = WINDOW_SECONDS + 1

Slots = dict[int, int]  # by the second in which it was taken; none is zero


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    limit: int
    used: int
    reset_seconds: float  # until nothing of it counts any more

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used)


def slot_of(now: float) -> int:
    return math.floor(now)


def forget_old(slots: Slots, now: float) -> None:
    oldest = slot_of(now) - WINDOW_SECONDS
    for slot in [slot for slot in slots if slot < oldest]:
        del slots[slot]


def state_of(slots: Slots, limit: int, now: float) -> WindowState:
    reset = max(slots) + _SLOTS - now if slots else 0.0
    return WindowState(limit=limit, used=sum(slots.values()), reset_seconds=reset)


def seconds_until(slots: Slots, limit: int, wanted: int, now: float) -> float:
    """Until so much can be taken; 0 where it can be now. `wanted` is at most the limit."""
    excess = sum(slots.values()) + wanted - limit
    for slot in sorted(slots):
        if excess <= 0:
            break
        excess -= slots[slot]
        if excess <= 0:
            return slot + _SLOTS - now
    return 0.0 if excess <= 0 else float(_SLOTS)


def take(slots: Slots, amount: int, slot: int) -> None:
    if amount:
        slots[slot] = slots.get(slot, 0) + amount


def give_back(slots: Slots, amount: int, slot: int) -> None:
    """What is no longer in its slot has left the window already."""
    left = slots.get(slot, 0) - amount
    if left > 0:
        slots[slot] = left
    else:
        slots.pop(slot, None)

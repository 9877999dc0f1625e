"""Bounds of what is kept: in number, in bytes and in time."""

import numpy as np
import pytest

from serving.orchestrator.semantic_cache.answer import Answer
from serving.orchestrator.semantic_cache.entries import Entries
from serving.orchestrator.semantic_cache.question import Question

AXES = np.eye(4, dtype=np.float32)


def question(text: str, *, key: bytes = b"k", tenant: str = "t", weights: str = "w") -> Question:
    return Question(key=key, tenant=tenant, weights=weights, text=text)


def answer(text: str = "yes") -> Answer:
    return Answer(token_ids=(1, 2), stop_token_id=None, text=text, weights="w")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entries(clock: Clock | None = None, *, most: int = 3, most_bytes: int = 1 << 20) -> Entries:
    return Entries(dimensions=4, most=most, most_bytes=most_bytes, lifetime=10.0, now=clock or Clock())


def test_the_nearest_of_its_key_is_found_from_the_threshold_on() -> None:
    kept = entries()
    kept.add(question("a"), AXES[0], answer("of a"))
    kept.add(question("b"), AXES[1], answer("of b"))
    kept.add(question("a", key=b"other"), AXES[2], answer("of another"))
    between = np.array([0.6, 0.8, 0, 0], np.float32)
    found = kept.nearest(question("c"), between, 0.8)
    assert found is not None
    assert (found.answer.text, found.similarity) == ("of b", pytest.approx(0.8))
    assert kept.nearest(question("c"), between, 0.81) is None
    assert kept.nearest(question("c"), AXES[2], 0.8) is None
    assert kept.nearest(question("c", key=b"none"), AXES[2], 0.0) is None


def test_the_one_used_longest_ago_goes_first() -> None:
    kept = entries()
    for at, text in enumerate("abc"):
        kept.add(question(text), AXES[at], answer(text))
    assert kept.same(question("a")) is not None
    kept.add(question("d"), AXES[3], answer("d"))
    assert [kept.same(question(text)) is not None for text in "abcd"] == [True, False, True, True]


def test_bytes_are_bounded_and_what_is_larger_than_all_room_is_left_out() -> None:
    kept = entries(most_bytes=1300)
    for at, text in enumerate("abc"):
        kept.add(question(text), AXES[at], answer("x" * 50))
        assert 0 < kept.bytes <= 1300
    assert len(kept) == 2
    kept.add(question("d"), AXES[3], answer("x" * 1300))
    assert len(kept) == 2
    kept.add(question("c"), AXES[2], answer("short"))
    again = kept.same(question("c"))
    assert again is not None
    assert again.answer.text == "short"
    assert len(kept) == 2


def test_an_entry_lives_for_its_time_however_often_it_is_used() -> None:
    clock = Clock()
    kept = entries(clock)
    kept.add(question("a"), AXES[0], answer())
    clock.now = 6.0
    kept.add(question("b"), AXES[1], answer())
    found = kept.nearest(question("a"), AXES[0], 0.9)
    assert found is not None
    assert found.age_seconds == 6.0
    clock.now = 10.0
    assert kept.nearest(question("a"), AXES[0], 0.9) is None
    assert kept.same(question("b")) is not None
    assert len(kept) == 1


def test_what_is_dropped_is_gone_and_its_room_free() -> None:
    kept = entries()
    kept.add(question("a", tenant="x"), AXES[0], answer())
    kept.add(question("b", tenant="y", weights="new"), AXES[1], answer())
    kept.add(question("c", tenant="y"), AXES[2], answer())
    assert kept.drop("x") == 1
    assert kept.drop_other_weights("new") == 1
    assert kept.same(question("b", tenant="y", weights="new")) is not None
    assert kept.drop() == 1
    assert (len(kept), kept.bytes) == (0, 0)
    for at, text in enumerate("abc"):
        kept.add(question(text), AXES[at], answer())
    assert len(kept) == 3


def test_a_tenant_at_its_bound_loses_its_own_answers_and_nobody_elses() -> None:
    kept = Entries(dimensions=4, most=8, most_bytes=1 << 20, tenant_share=0.25, lifetime=10.0, now=Clock())
    kept.add(question("theirs", tenant="b", key=b"b"), AXES[0], answer())
    for text in "abcdefghij":
        kept.add(question(text), AXES[1], answer())
    assert [text for text in "abcdefghij" if kept.same(question(text))] == ["i", "j"]
    assert kept.same(question("theirs", tenant="b", key=b"b")) is not None
    assert (kept.count("t"), kept.count("b"), len(kept)) == (2, 1, 3)


def test_a_tenant_has_no_more_than_its_share_of_the_bytes() -> None:
    kept = Entries(dimensions=4, most=8, most_bytes=4000, tenant_share=0.5, lifetime=10.0, now=Clock())
    kept.add(question("theirs", tenant="b", key=b"b"), AXES[0], answer("x" * 1000))
    before = kept.bytes
    for text in "abcdef":
        kept.add(question(text), AXES[1], answer("x" * 400))
        assert kept.bytes - before <= 2000
    kept.add(question("too large"), AXES[1], answer("x" * 2000))
    assert kept.same(question("too large")) is None
    assert kept.same(question("theirs", tenant="b", key=b"b")) is not None


def test_where_all_is_full_the_tenant_that_holds_most_makes_room() -> None:
    kept = Entries(dimensions=4, most=4, most_bytes=1 << 20, tenant_share=0.5, lifetime=10.0, now=Clock())
    for tenant, texts in (("one", "a"), ("two", "ab"), ("three", "a")):
        for text in texts:
            kept.add(question(text, tenant=tenant, key=tenant.encode()), AXES[0], answer())
    kept.add(question("a", tenant="four", key=b"four"), AXES[0], answer())
    assert [kept.count(tenant) for tenant in ("one", "two", "three", "four")] == [1, 1, 1, 1]
    assert kept.same(question("b", tenant="two", key=b"two")) is not None

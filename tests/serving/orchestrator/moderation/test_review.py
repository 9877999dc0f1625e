"""The file of what waits for a person, as processes, reviewers and erasures use it."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from serving.errors import NotFoundError
from serving.orchestrator.moderation.judges.judge import Finding
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.review import ReviewQueue
from serving.orchestrator.moderation.review_record import MOST_EXCERPT_CHARS, ReviewFilter, Subject

OF_BEFORE = """
CREATE TABLE review (id TEXT PRIMARY KEY, at REAL NOT NULL, tenant TEXT NOT NULL, request_id TEXT NOT NULL,
    direction TEXT NOT NULL, category TEXT NOT NULL, score REAL NOT NULL, excerpt TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0);
INSERT INTO review VALUES ('r1/input/0/hate/threatening', 5.0, 'acme', 'r1', 'input', 'hate/threatening', 0.5, 'x', 1)
"""


class Desk:
    def __init__(self, path: Path) -> None:
        self.registry = CollectorRegistry()
        self.folder = path.parent
        self.now = 1000.0
        self.queue = ReviewQueue(path, ModerationMetrics(self.registry), retain_seconds=100.0, clock=lambda: self.now)

    async def add(self, request_id: str, category: str = "hate", tenant: str = "acme", user: str = "") -> bool:
        self.now += 1
        finding = Finding(category, 0.75, judge="rules")
        return await self.queue.add(Subject(tenant, request_id, user), "0", "input", finding, f"text of {request_id}")

    async def requests(self, wanted: ReviewFilter | None = None) -> list[str]:
        found, _ = await self.queue.listed(wanted or ReviewFilter(), limit=100)
        return [record.request_id for record in found]

    def counted(self, category: str, state: str) -> float | None:
        return self.registry.get_sample_value("weft_moderation_reviews", {"category": category, "state": state})


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "review.sqlite")
    yield made
    made.queue.close()


async def test_what_users_wrote_is_the_servers_alone(desk: Desk) -> None:
    assert await desk.add("r")
    assert {path.stat().st_mode & 0o077 for path in desk.folder.iterdir()} == {0}


async def test_pages_hold_each_record_once_and_the_newest_comes_first(desk: Desk) -> None:
    for number in range(5):
        assert await desk.add(f"r{number}")
    assert await desk.add("r3")  # judged again: no second record
    seen: list[str] = []
    after, more = None, True
    while more:
        found, more = await desk.queue.listed(ReviewFilter(), after=after, limit=2)
        seen += [record.request_id for record in found]
        after = found[-1].id
    assert seen == ["r4", "r3", "r2", "r1", "r0"]
    with pytest.raises(NotFoundError) as refused:
        await desk.queue.listed(ReviewFilter(), after="nobody")
    assert refused.value.param == "after"


async def test_records_are_found_by_category_tenant_and_state(desk: Desk) -> None:
    await desk.add("a", "hate", "acme")
    await desk.add("b", "hate", "else")
    await desk.add("c", "violence", "acme")
    (found, *_), _ = await desk.queue.listed(ReviewFilter(category="hate", tenant="else"))
    decided = await desk.queue.decide(found.id, "wrong", "a quotation", "key-1")
    assert (decided.done, decided.verdict, decided.note, decided.decided_by) == (True, "wrong", "a quotation", "key-1")
    assert (decided.request_id, decided.judge, decided.excerpt) == ("b", "rules", "text of b")
    assert await desk.requests(ReviewFilter(done=True)) == ["b"]
    assert await desk.requests(ReviewFilter(done=False, tenant="acme")) == ["c", "a"]
    assert await desk.requests(ReviewFilter(done=False, category="hate")) == ["a"]


async def test_the_metrics_tell_what_waits_and_what_people_said_and_a_later_verdict_counts_alone(desk: Desk) -> None:
    for number in range(3):
        await desk.add(f"r{number}")
    await desk.queue.count()
    assert desk.counted("hate", "waiting") == 3
    found, _ = await desk.queue.listed(ReviewFilter())
    await desk.queue.decide(found[0].id, "right", None, "key-1")
    await desk.queue.decide(found[0].id, "wrong", None, "key-2")
    assert [desk.counted("hate", state) for state in ("waiting", "right", "wrong")] == [2, None, 1]
    with pytest.raises(NotFoundError):
        await desk.queue.decide("nobody", "right", None, "key-1")


async def test_of_a_user_goes_what_is_hers_and_of_a_tenant_all(desk: Desk) -> None:
    for name, tenant, user in (("a", "acme", "ada"), ("b", "acme", "bob"), ("c", "else", "ada"), ("d", "acme", "")):
        await desk.add(name, tenant=tenant, user=user)
    assert await desk.queue.erase("acme", "ada", True) == {"records": 1}
    assert await desk.queue.erase("acme", "ada", False) == {"records": 1}
    assert await desk.requests() == ["d", "c", "b"]
    assert await desk.queue.erase("acme", None, False) == {"records": 2}
    assert await desk.requests() == ["c"]


async def test_records_go_when_their_time_is_over_and_those_that_nobody_saw_are_counted(desk: Desk) -> None:
    await desk.add("seen")
    await desk.add("unseen")
    found, _ = await desk.queue.listed(ReviewFilter())
    await desk.queue.decide(found[-1].id, "right", None, "key-1")
    desk.now += 50
    await desk.add("later")
    desk.now = 1100.9
    await desk.queue.trim()
    assert len(await desk.requests()) == 3
    desk.now = 1102.0
    await desk.queue.trim()
    assert await desk.requests() == ["later"]
    assert desk.registry.get_sample_value("weft_moderation_routed_total", {"outcome": "unseen"}) == 1
    assert b"text of unseen" not in b"".join(path.read_bytes() for path in desk.folder.iterdir())
    assert b"text of later" in b"".join(path.read_bytes() for path in desk.folder.iterdir())


async def test_without_a_time_records_stay(tmp_path: Path) -> None:
    queue = ReviewQueue(tmp_path / "review.sqlite", ModerationMetrics(CollectorRegistry()), clock=lambda: 0.0)
    await queue.add(Subject("acme", "r"), "0", "input", Finding("hate", 1.0), "text")
    await queue.trim()
    assert len((await queue.listed(ReviewFilter()))[0]) == 1
    queue.close()


async def test_what_a_server_holds_of_its_time_is_trimmed_while_it_runs(desk: Desk) -> None:
    await desk.add("old")
    desk.now += 100
    watch = asyncio.create_task(desk.queue.run())
    while await desk.requests():
        assert not watch.done()
        await asyncio.sleep(0.01)
    watch.cancel()


async def test_a_file_of_an_earlier_release_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "review.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(OF_BEFORE)
    database.close()
    desks = [Desk(path), Desk(path)]  # two processes
    await desks[0].add("new", user="ada")
    assert await desks[1].requests() == ["new", "r1"]
    old = await desks[1].queue.find("r1/input/0/hate/threatening")
    assert (old.done, old.verdict, old.user) == (True, None, "")
    await desks[1].queue.count()
    assert desks[1].counted("hate/threatening", "undecided") == 1
    for desk in desks:
        desk.queue.close()


async def test_a_long_text_is_kept_by_its_end(desk: Desk) -> None:
    finding = Finding("hate", 1.0)
    await desk.queue.add(Subject("acme", "r"), "0", "output", finding, "a" * MOST_EXCERPT_CHARS + "end")
    ((record,), _) = await desk.queue.listed(ReviewFilter())
    assert len(record.excerpt) == MOST_EXCERPT_CHARS
    assert record.excerpt.endswith("end")


async def test_a_record_that_cannot_be_written_is_counted_and_promised_to_nobody(desk: Desk) -> None:
    desk.queue.close()
    assert await desk.add("r") is False
    assert desk.registry.get_sample_value("weft_moderation_routed_total", {"outcome": "lost"}) == 1

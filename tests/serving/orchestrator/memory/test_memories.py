import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from serving.errors import ConfigError, ContextLengthError, EngineUnavailableError
from serving.orchestrator.memory.entries import Exchange, Person
from serving.orchestrator.memory.memories import Memories
from serving.settings.memory import MemoryConfig, Strategy

ANN, BEN = Person("acme", "ann"), Person("acme", "ben")
OTHERS_ANN = Person("other", "ann")


class Model:
    """Summarizes by naming what it was given."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return f"summary {len(self.prompts)}"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    opened: list[Memories] = []

    def make(strategy: Strategy = "selective", **options: Any) -> Memories:
        opened.append(Memories(MemoryConfig(path=tmp_path / "memory.sqlite", strategy=strategy, **options)))
        return opened[-1]

    yield make
    for memories in opened:
        memories.close()


def fact(number: int) -> Exchange:
    return Exchange(f"The code of door {number} is {number * 7919}.", "Noted.")


async def remembered(memories: Memories, exchange: Exchange, ask: Any, person: Person = ANN) -> None:
    await memories.remember(person, exchange, ask, await memories.life(person))


async def told(memories: Memories, count: int, ask: Any = None, person: Person = ANN) -> None:
    for number in range(count):
        await remembered(memories, fact(number), ask or Model(), person)


async def test_the_exchange_that_shares_the_questions_words_is_recalled_first(made: Any) -> None:
    memories = made(notes=3)
    await told(memories, 30)
    recalled = await memories.recall(ANN, "What is the code of door 17?", ())
    assert recalled.summary is None
    assert len(recalled.notes) == 3
    assert recalled.notes[0].text == fact(17).text


async def test_what_the_prompt_has_anyway_is_not_recalled(made: Any) -> None:
    memories = made(notes=3)
    await told(memories, 5)
    recalled = await memories.recall(ANN, "What is the code of door 3?", {fact(3).digest})
    assert fact(3).text not in [note.text for note in recalled.notes]
    assert len(recalled.notes) == 3


@pytest.mark.parametrize("person", [BEN, OTHERS_ANN], ids=["another user", "another tenant's user"])
async def test_nobody_recalls_sees_or_forgets_what_another_said(made: Any, person: Person) -> None:
    memories = made()
    await told(memories, 3)
    assert (await memories.recall(person, "What is the code of door 1?", ())).notes == ()
    assert await memories.entries(person) == []
    mine = await memories.entries(ANN)
    assert await memories.forget(person, mine[0].id) == await memories.forget(person) == 0
    assert await memories.entries(ANN) == mine


async def test_forgetting_one_or_all_leaves_no_trace_in_what_is_found(made: Any, tmp_path: Path) -> None:
    memories = made()
    await told(memories, 4)
    entries = await memories.entries(ANN)
    assert await memories.forget(ANN, entries[1].id) == 1
    notes = (await memories.recall(ANN, "the code of door 1", ())).notes
    assert fact(1).text not in [note.text for note in notes]
    assert await memories.forget(ANN) == 3
    assert (await memories.recall(ANN, "the code of door 2", ())).notes == ()


async def test_a_memory_survives_a_restart_and_its_switch_does(made: Any) -> None:
    first = made()
    await told(first, 2)
    await first.switch(ANN, False)
    again = made()
    assert [entry.text for entry in await again.entries(ANN)] == [fact(0).text, fact(1).text]
    assert not await again.is_on(ANN)
    assert await again.is_on(BEN)
    assert not await again.is_on(Person("acme", "")), "where nobody is named, nobody's memory is kept"
    await again.switch(ANN, True)
    assert await again.is_on(ANN)


async def test_a_running_summary_takes_the_one_before_and_leaves_the_newest(made: Any) -> None:
    memories, model = made("summary", block=4), Model()
    for number in range(12):
        await remembered(memories, fact(number), model)
        await memories.compact()
    entries = await memories.entries(ANN)
    assert [(entry.level, entry.text) for entry in entries if entry.level] == [(1, "summary 2")]
    assert [entry.text for entry in entries if not entry.level] == [fact(number).text for number in range(8, 12)]
    assert "summary 1" in model.prompts[1]
    assert fact(4).question in model.prompts[1]
    recalled = await memories.recall(ANN, "the code of door 9", ())
    assert recalled.summary == "summary 2"
    assert recalled.notes[0].text == fact(9).text


async def test_summaries_of_summaries_grow_with_the_logarithm_of_what_was_said(made: Any) -> None:
    memories, model = made("hierarchical", block=3), Model()
    for number in range(120):
        await remembered(memories, fact(number), model)
        await memories.compact()
    entries = await memories.entries(ANN)
    levels = [entry.level for entry in entries]
    assert max(levels) >= 3
    assert len(entries) < 6 * (max(levels) + 1)
    summary = (await memories.recall(ANN, "x", ())).summary
    assert summary is not None
    coarsest = next(entry.text for entry in entries if entry.level == max(levels))
    assert summary.startswith(coarsest)


Erasing = Callable[[Memories], Awaitable[object]]


@pytest.mark.parametrize(
    "erasing",
    [
        lambda memories: memories.forget(ANN),
        lambda memories: memories.erase("acme", "ann", False),
        lambda memories: memories.erase("acme", None, False),
    ],
    ids=["by the user", "of the user", "of the tenant"],
)
async def test_what_a_turn_began_before_an_erasure_does_not_come_back(made: Any, erasing: Erasing) -> None:
    memories = made()
    lives = {person: await memories.life(person) for person in (ANN, OTHERS_ANN)}
    await told(memories, 1)
    await erasing(made())  # another process has the file open too
    for person, life in lives.items():
        await memories.remember(person, fact(1), Model(), life)
    assert await memories.entries(ANN) == []
    assert len(await memories.entries(OTHERS_ANN)) == 1, "it is another's"
    await memories.life(ANN)
    await memories.remember(ANN, fact(1), Model(), lives[ANN])
    assert await memories.entries(ANN) == [], "nor into the life that a turn after it began"
    await told(memories, 1)
    assert len(await memories.entries(ANN)) == 1


async def test_forgetting_one_entry_or_only_looking_ends_no_turns_memory(made: Any) -> None:
    memories = made()
    await told(memories, 1)
    life = await memories.life(ANN)
    await memories.forget(ANN, (await memories.entries(ANN))[0].id)
    await memories.erase("acme", None, True)
    await memories.remember(ANN, fact(1), Model(), life)
    assert [entry.text for entry in await memories.entries(ANN)] == [fact(1).text]


async def test_a_summary_of_what_was_forgotten_meanwhile_is_not_kept(made: Any) -> None:
    memories = made("summary", block=2)

    async def ask(prompt: str) -> str:
        await memories.forget(ANN)
        return "all that was to be forgotten"

    await told(memories, 4, ask)
    await memories.compact()
    assert await memories.entries(ANN) == []


async def test_a_model_that_is_away_costs_a_summary_and_no_memory(made: Any) -> None:
    memories, model = made("summary", block=2), Model()

    async def away(prompt: str) -> str:
        raise EngineUnavailableError("the engine is starting")

    await told(memories, 4, away)
    await memories.compact()
    assert len(await memories.entries(ANN)) == 4
    await remembered(memories, fact(4), model)
    await memories.compact()
    assert len(model.prompts) == 1


async def test_a_model_that_says_nothing_is_asked_more_and_more_rarely_until_it_says_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry, asked = CollectorRegistry(), list[int]()
    memories = Memories(MemoryConfig(path=tmp_path / "memory.sqlite", strategy="summary", block=2), registry)
    said = "  "

    async def reasoning(prompt: str) -> str:
        asked.append(number)
        return said

    for number in range(1, 21):
        said = "  " if number < 19 else "All of it."
        await remembered(memories, fact(number), reasoning)
        await memories.compact()
    assert asked[:5] == [4, 5, 7, 11, 19]
    assert registry.get_sample_value("weft_memory_summary_failures_total") == 4
    assert "empty summary" in caplog.text
    assert asked[-1] == 20, "what failed once is over"
    assert sorted(entry.level for entry in await memories.entries(ANN)) == [0, 0, 1]
    memories.close()


async def test_texts_that_the_window_does_not_hold_are_summarized_by_their_beginnings(made: Any) -> None:
    memories, model = made("summary", block=2), Model()

    async def narrow(prompt: str) -> str:
        if len(prompt) > 1000:
            raise ContextLengthError("the prompt is too long")
        return await model(prompt)

    await remembered(memories, Exchange(f"Read this: {'page ' * 10_000}", "I have."), narrow)
    await told(memories, 3, narrow)
    await memories.compact()
    assert len(await memories.entries(ANN)) == 3
    (prompt,) = model.prompts
    assert "Read this: page" in prompt
    assert fact(0).text in prompt, "what is short is whole"


async def test_what_no_window_holds_and_a_fault_cost_a_summary_and_not_those_of_others(made: Any) -> None:
    memories, model = made("summary", block=2), Model()

    async def full(prompt: str) -> str:
        raise ContextLengthError("the prompt is too long")

    async def broken(prompt: str) -> str:
        raise ZeroDivisionError

    await told(memories, 4, full, person=OTHERS_ANN)
    await told(memories, 4, broken, person=BEN)
    await told(memories, 4, model)
    await memories.compact()
    assert [len(await memories.entries(person)) for person in (OTHERS_ANN, BEN, ANN)] == [4, 4, 3]


async def test_the_background_work_runs_until_it_is_stopped(made: Any) -> None:
    memories, model = made("summary", block=2), Model()
    running = asyncio.create_task(memories.run())
    await told(memories, 4, model)
    while not model.prompts:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_oldest_entries_go_first(made: Any) -> None:
    memories = made(most_entries=10)
    await told(memories, 25)
    assert [entry.text for entry in await memories.entries(ANN)] == [fact(number).text for number in range(15, 25)]


async def test_each_tenant_has_its_strategy_and_a_window_keeps_nothing(made: Any) -> None:
    memories = made("selective", tenants={"other": "window"})
    await told(memories, 2)
    await told(memories, 2, person=OTHERS_ANN)
    assert len(await memories.entries(ANN)) == 2
    assert await memories.entries(OTHERS_ANN) == []
    assert memories.strategy("other") == "window"


def test_a_place_that_cannot_be_written_is_found_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="memory"):
        Memories(MemoryConfig(path=tmp_path / "file" / "memory.sqlite"))

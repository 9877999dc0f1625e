"""What is recalled of what has left the window, and what is made of it meanwhile.

window        nothing
selective     earlier exchanges that share words with the question
summary       one running summary of the oldest, and of the others those that matter now
hierarchical  summaries of the oldest, coarser with each level, and of the others those that matter now
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.errors import ContextLengthError, EngineError
from serving.orchestrator.context import Passage
from serving.orchestrator.marked_data import marked
from serving.orchestrator.memory.entries import Entry, Person
from serving.orchestrator.memory.store import MemoryStore
from serving.settings.memory import MemoryConfig, Strategy

# The model, in the batch class. Raises ContextLengthError where the prompt leaves no room for a summary.
Ask = Callable[[str], Awaitable[str]]

_INSTRUCTION = (
    "Summarize what follows in a few sentences. Keep names, numbers, dates, decisions and what the user likes. Write "
    "only the summary."
)


_FEWEST_CHARS = 64  # of a text that is to be summarized


@dataclass(frozen=True, slots=True)
class Recalled:
    summary: str | None = None
    notes: tuple[Passage, ...] = ()  # best first


class Memory(Protocol):
    async def recall(self, person: Person, question: str, visible: Collection[str]) -> Recalled:
        """`visible`: digests of exchanges that the prompt has anyway."""
        ...

    async def compact(self, person: Person, ask: Ask) -> None:
        """Makes of many entries few. In the background: it may be cancelled, and called again."""
        ...


class WindowMemory:
    async def recall(self, person: Person, question: str, visible: Collection[str]) -> Recalled:
        return Recalled()

    async def compact(self, person: Person, ask: Ask) -> None:
        """There is nothing to make less of."""


@dataclass(frozen=True, slots=True)
class SelectiveMemory:
    store: MemoryStore
    config: MemoryConfig

    async def recall(self, person: Person, question: str, visible: Collection[str]) -> Recalled:
        return Recalled(notes=await _notes(self.store, person, question, self.config.notes, visible))

    async def compact(self, person: Person, ask: Ask) -> None:
        """Exchanges stay as they are."""


@dataclass(frozen=True, slots=True)
class SummaryMemory:
    """`rolling`: the summary takes the one before into itself. Else each level of summaries has one above it, which
    takes as many of them as a summary takes exchanges."""

    store: MemoryStore
    config: MemoryConfig
    rolling: bool

    async def recall(self, person: Person, question: str, visible: Collection[str]) -> Recalled:
        summaries = [entry for entry in await self.store.entries(person) if entry.level]
        summaries.sort(key=lambda entry: (-entry.level, entry.id))  # the coarsest are the oldest
        notes = await _notes(self.store, person, question, self.config.notes, visible)
        return Recalled("\n".join(entry.text for entry in summaries) or None, notes)

    async def compact(self, person: Person, ask: Ask) -> None:
        level = 0
        while True:
            waiting = await self.store.entries(person, level)
            if not waiting:
                return
            # As many stay below as go up, so that the newest keep their words.
            if len(waiting) < 2 * self.config.block or (self.rolling and level):
                level += 1
                continue
            oldest = waiting[: self.config.block]
            before = await self.store.entries(person, 1) if self.rolling else []
            text = await _summary(ask, [*before, *oldest])
            if not await self.store.replace(person, [*before, *oldest], level + 1, text):
                return


def memory_of(strategy: Strategy, store: MemoryStore, config: MemoryConfig) -> Memory:
    match strategy:
        case "window":
            return WindowMemory()
        case "selective":
            return SelectiveMemory(store, config)
        case "summary" | "hierarchical":
            return SummaryMemory(store, config, rolling=strategy == "summary")


async def _notes(
    store: MemoryStore, person: Person, question: str, most: int, visible: Collection[str]
) -> tuple[Passage, ...]:
    found = await store.relevant(person, question, most, visible) if most else []
    return tuple(Passage(id=str(entry.id), text=entry.text) for entry in found)


async def _summary(ask: Ask, entries: Sequence[Entry]) -> str:
    """Where the window does not hold the texts, the longest are cut to their beginnings until it does: one of them
    would else keep all that comes after it from being summarized. Raises what `ask` raises, and EngineError where the
    model says nothing: all that it may say can go into its reasoning."""
    most, text = max(len(entry.text) for entry in entries), None
    while text is None:
        try:
            text = (await ask(_prompt(entries, most))).strip()
        except ContextLengthError:
            most //= 2
            if most < _FEWEST_CHARS:
                raise
    if not text:
        raise EngineError(
            "the model gave an empty summary: one that reasons may need a reasoning switch, or more "
            "memory.summary_tokens"
        )
    return text


def _prompt(entries: Sequence[Entry], most: int) -> str:
    """`most` characters of each."""
    said = [
        marked(Passage(id=str(entry.id), text=entry.text[:most]), "summary" if entry.level else "note")
        for entry in entries
    ]
    return "\n".join([_INSTRUCTION, "", *said])

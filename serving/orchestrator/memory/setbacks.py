"""Whose summaries fail, and how many exchanges are waited for until the next one is asked for.

A model that says nothing, or that is refused, says nothing again after the user's next words: it costs the tenant an
answer each time. After the first failure the next exchange asks again, then every second, fourth, up to every 64th.
"""

from dataclasses import dataclass

from serving.orchestrator.memory.entries import Person

_MOST_PERSONS = 1000
_LONGEST = 64  # exchanges


@dataclass(slots=True)
class _Setback:
    pause: int = 1  # exchanges from one attempt to the next
    left: int = 1  # of them, until the next attempt


class Setbacks:
    """Of one process. Of very many persons the one that had failed longest ago is forgotten."""

    def __init__(self) -> None:
        self._of: dict[Person, _Setback] = {}

    def is_due(self, person: Person) -> bool:
        """After one exchange more: whether a summary is to be asked for."""
        setback = self._of.get(person)
        if setback is None:
            return True
        setback.left -= 1
        return setback.left <= 0

    def failed(self, person: Person) -> int:
        """How many exchanges are waited for now."""
        before = self._of.pop(person, None)
        pause = 1 if before is None else min(2 * before.pause, _LONGEST)
        self._of[person] = _Setback(pause, pause)
        if len(self._of) > _MOST_PERSONS:
            del self._of[next(iter(self._of))]
        return pause

    def over(self, person: Person) -> None:
        self._of.pop(person, None)

    def forget(self, tenant: str, user: str | None) -> None:
        """One of the tenant's users, or all."""
        self._of = {person: setback for person, setback in self._of.items() if not person.is_of(tenant, user)}

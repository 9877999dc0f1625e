"""Answers by question, within bounds of all and of each tenant.

A tenant at its own bound loses its own answer that was used longest ago. Where all is full though no tenant is, the one
that holds the most bytes loses one: nobody who holds less than others does.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from serving.orchestrator.semantic_cache.answer import Answer
from serving.orchestrator.semantic_cache.question import Question

_OVERHEAD_BYTES = 512  # of an entry, beside its vector, text and tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    answer: Answer
    similarity: float  # of the questions, 1 where they are the same text
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    key: bytes
    digest: bytes
    tenant: str
    weights: str
    answer: Answer
    made_at: float
    size: int  # bytes


@dataclass(slots=True)
class _Part:
    """What one tenant holds."""

    slots: OrderedDict[int, None] = field(default_factory=OrderedDict)  # the last used one last
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.slots)


class Entries:
    def __init__(
        self,
        *,
        dimensions: int,
        most: int,
        most_bytes: int,
        tenant_share: float = 1.0,
        lifetime: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tenant_share` of `most` and of `most_bytes` is what one tenant may hold."""
        self._most_of_tenant = max(1, int(most * tenant_share))
        self._most_bytes_of_tenant = int(most_bytes * tenant_share)
        self._tenants: dict[str, _Part] = {}
        self._vectors = np.zeros((most, dimensions), np.float32)  # by slot
        self._free = list(range(most))
        self._entries: dict[int, _Entry] = {}  # by slot
        self._slots: dict[bytes, dict[bytes, int]] = {}  # by key, then by the text's digest
        self._ages: OrderedDict[int, None] = OrderedDict()  # slots, that of the oldest entry first
        self._most_bytes = most_bytes
        self._lifetime = lifetime
        self._now = now
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def same(self, question: Question) -> Match | None:
        """The entry of the very same text."""
        self._expire()
        slot = self._slots.get(question.key, {}).get(question.digest)
        return None if slot is None else self._match(slot, 1.0)

    def nearest(self, question: Question, vector: np.ndarray, threshold: float) -> Match | None:
        """`vector`: [D], of length 1."""
        self._expire()
        slots = list(self._slots.get(question.key, {}).values())
        if not slots:
            return None
        cosines = self._vectors[slots] @ vector
        best = int(cosines.argmax())
        return self._match(slots[best], float(cosines[best])) if cosines[best] >= threshold else None

    def add(self, question: Question, vector: np.ndarray, answer: Answer) -> None:
        """In place of what the same text had. One that is larger than all room is left out."""
        size = _OVERHEAD_BYTES + vector.nbytes + len(answer.text.encode(errors="surrogatepass"))
        size += 8 * len(answer.token_ids)
        if size > self._most_bytes_of_tenant:
            return
        self._expire()
        old = self._slots.get(question.key, {}).get(question.digest)
        if old is not None:
            self._drop(old)
        self._make_room(question.tenant, size)
        slot = self._free.pop()
        entry = _Entry(
            key=question.key,
            digest=question.digest,
            tenant=question.tenant,
            weights=question.weights,
            answer=answer,
            made_at=self._now(),
            size=size,
        )
        self._vectors[slot] = vector
        self._entries[slot] = entry
        self._slots.setdefault(question.key, {})[question.digest] = slot
        self._ages[slot] = None
        part = self._tenants.setdefault(question.tenant, _Part())
        part.slots[slot] = None
        part.bytes += size
        self.bytes += size

    def count(self, tenant: str) -> int:
        part = self._tenants.get(tenant)
        return 0 if part is None else len(part.slots)

    def drop(self, tenant: str | None = None) -> int:
        """All, or those of a tenant. How many they were."""
        return self._drop_all(slot for slot, entry in self._entries.items() if tenant in (None, entry.tenant))

    def drop_other_weights(self, weights: str) -> int:
        return self._drop_all(slot for slot, entry in self._entries.items() if entry.weights != weights)

    def _drop_all(self, slots: Iterable[int]) -> int:
        gone = list(slots)
        for slot in gone:
            self._drop(slot)
        return len(gone)

    def _make_room(self, tenant: str, size: int) -> None:
        own = self._tenants.get(tenant)
        while own and (len(own.slots) >= self._most_of_tenant or own.bytes + size > self._most_bytes_of_tenant):
            self._drop(next(iter(own.slots)))
        while self.bytes + size > self._most_bytes or not self._free:
            largest = max(self._tenants.values(), key=lambda part: part.bytes)
            self._drop(next(iter(largest.slots)))

    def _match(self, slot: int, similarity: float) -> Match:
        entry = self._entries[slot]
        self._tenants[entry.tenant].slots.move_to_end(slot)
        return Match(answer=entry.answer, similarity=similarity, age_seconds=self._now() - entry.made_at)

    def _expire(self) -> None:
        while self._ages:
            slot = next(iter(self._ages))
            if self._now() - self._entries[slot].made_at < self._lifetime:
                return
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        entry = self._entries.pop(slot)
        del self._ages[slot]
        siblings = self._slots[entry.key]
        del siblings[entry.digest]
        if not siblings:
            del self._slots[entry.key]
        part = self._tenants[entry.tenant]
        del part.slots[slot]
        part.bytes -= entry.size
        if not part.slots:
            del self._tenants[entry.tenant]
        self._free.append(slot)
        self.bytes -= entry.size

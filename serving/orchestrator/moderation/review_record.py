"""One text that a policy has routed to a person, and what that person says of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from serving.orchestrator.moderation.judges.judge import Direction

ReviewVerdict = Literal["right", "wrong"]
MOST_EXCERPT_CHARS = 2000
MOST_NOTE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose text it is."""

    tenant: str
    request_id: str  # without what a process that goes on with it adds
    user: str = ""  # of the tenant's, in its own words; "": nobody said


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRecord:
    id: str
    at: float  # seconds since 1970
    tenant: str
    user: str
    request_id: str
    direction: Direction
    category: str
    score: float
    judge: str
    excerpt: str  # the text's last characters
    done: bool
    verdict: ReviewVerdict | None  # right: the policy's finding holds; wrong: it was a false positive
    note: str | None
    decided_at: float | None
    decided_by: str | None  # the id of the key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFilter:
    """None: whichever."""

    category: str | None = None
    tenant: str | None = None
    done: bool | None = None

    @property
    def terms(self) -> Iterator[tuple[str, object]]:
        """Of SQL, each with its value."""
        for name in ("category", "tenant", "done"):
            value = getattr(self, name)
            if value is not None:
                yield f"{name} = ?", value

"""Which answers this API process has begun, of late: whose they are, and which model's."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

Rating = Literal["up", "down"]

MOST_KEPT = 16_384  # answers; the oldest are forgotten


@dataclass(slots=True)
class Answer:
    tenant: str
    model: str
    request_id: str
    rating: Rating | None = None  # the last one


class Answered:
    def __init__(self, most: int = MOST_KEPT) -> None:
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._most = most

    def note(self, name: str, answer: Answer) -> None:
        """By a request's id, or a response's. A turn's further answers are the first one's."""
        self._answers.setdefault(name, answer)
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def get(self, name: str) -> Answer | None:
        return self._answers.get(name)

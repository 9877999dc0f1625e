"""What a memory is of, and what it holds."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Person:
    """A tenant's user. Nothing that one has said is another's to recall."""

    tenant: str
    user: str

    def is_of(self, tenant: str, user: str | None) -> bool:
        """`user` None: any of the tenant's."""
        return self.tenant == tenant and user in (None, self.user)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was said to the model, and what it answered."""

    question: str
    answer: str

    @property
    def text(self) -> str:
        return f"User: {self.question}\nAssistant: {self.answer}"

    @property
    def digest(self) -> str:
        """Tells whether a conversation's own messages still have it."""
        return hashlib.blake2b(self.text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An exchange, or a summary of such: `level` 0 is an exchange, each level above takes the one below."""

    id: int  # higher is newer
    level: int
    text: str
    created: float  # seconds since 1970
    digest: str = ""  # of an exchange

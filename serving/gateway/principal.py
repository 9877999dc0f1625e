"""Who asks, after the credentials were checked, and what they may."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from serving.access import TierConfig
from serving.engine.request import Priority
from serving.errors import ForbiddenError
from serving.gateway.authorization import secret_of

ANONYMOUS = "anonymous"  # the tenant and key id of everybody, where nobody has to say who they are


class Scope(StrEnum):
    INFERENCE = "inference"
    USAGE = "usage"  # reads what its own tenant has used
    ADMIN = "admin"  # everything on the admin listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a protocol found with a request. Never logged."""

    secret: str | None = field(default=None, repr=False)  # an API key or a JSON Web Token, without "Bearer"
    certificate: str | None = None  # the common name of a client certificate that TLS has verified

    @classmethod
    def of(cls, headers: Mapping[str, str], *, certificate: str | None = None) -> "Credentials":
        """From HTTP headers, or gRPC metadata, with lower-case names. Raises AuthenticationError."""
        return cls(secret=secret_of(headers), certificate=certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    key_id: str  # never the secret; "jwt:SUBJECT" for a token
    tenant: str
    tier: str
    scopes: frozenset[Scope] = frozenset((Scope.INFERENCE,))
    limits: TierConfig = field(default_factory=TierConfig)

    @property
    def priority(self) -> Priority:
        return Priority(self.limits.priority)

    @property
    def best_priority(self) -> Priority:
        return Priority(self.limits.best_priority or self.limits.priority)

    @property
    def weight(self) -> float:
        return self.limits.weight

    def require(self, scope: Scope) -> None:
        """Raises ForbiddenError."""
        if scope not in self.scopes and not (scope is Scope.USAGE and Scope.ADMIN in self.scopes):
            raise ForbiddenError(f"this key has no scope {scope.value}", code="scope_missing")


def anonymous(limits: TierConfig | None = None) -> Principal:
    """Everybody, on a server that asks nobody. Such a server listens on loopback, or was told to be open."""
    return Principal(
        key_id=ANONYMOUS,
        tenant=ANONYMOUS,
        tier=ANONYMOUS,
        scopes=frozenset(Scope),
        limits=limits or TierConfig(best_priority="interactive"),
    )

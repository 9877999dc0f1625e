"""Who may ask, and how much: the tables of a deployment that the gateway reads. Strict, as all of the deployment.

Keys are kept hashed in SQLite (`weft keys`); tenants and tiers stand here. A secret never does.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from serving.errors import ConfigError
from serving.web_names import is_loopback

PriorityName = Literal["interactive", "standard", "batch"]
StoreFailure = Literal["refuse", "local"]

_CLASSES = get_args(PriorityName)  # the best first
DEFAULT_TIER = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}")  # of tenants and tiers: they stand in metrics and in keys
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """What one tenant may keep here. None: what the deployment says for all."""

    conversations: int | None = None  # and chains of responses
    conversation_items: int | None = None  # of one of them
    conversation_bytes: int | None = None  # of all of them together
    files: int | None = None
    file_bytes: int | None = None
    vector_stores: int | None = None
    vector_store_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """What one tenant of this tier may do, over all its keys. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and output
    concurrency: int | None = None  # requests at once
    context_tokens: int | None = None  # prompt and output of one stream
    output_tokens: int | None = None  # of one choice
    unstated_output_tokens: int = 1024  # reserved for a choice whose request names no max_tokens
    priority: PriorityName = "standard"  # of requests that name no class
    best_priority: PriorityName | None = None  # that a request may name; None: `priority`
    weight: float = 1.0  # share of its class
    models: tuple[str, ...] = ()  # empty: all
    storage: StorageConfig = field(default_factory=StorageConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    tier: str = DEFAULT_TIER
    disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """JSON Web Tokens of one issuer."""

    issuer: str
    audience: str
    keys_file: Path | None = None  # the issuer's key set (JWKS); this or the next
    keys_url: str | None = None  # https, or http on this machine
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    tenant_claim: str = "tenant"
    tier_claim: str = "tier"
    scope_claim: str = "scope"
    scope_required: bool = False  # a token without that claim may do nothing, and not inference
    leeway_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    mode: Literal["none", "required"] | None = None  # None: required where a way to authenticate is configured
    keys: Path | None = None  # the database that `weft keys` writes
    jwt: TokenConfig | None = None
    certificates: Mapping[str, str] = field(default_factory=dict)  # a client certificate's common name: its tenant

    @property
    def ways(self) -> tuple[str, ...]:
        """The keys of those that are configured; the environment may have one more."""
        return tuple(f"auth.{name}" for name in ("keys", "jwt", "certificates") if getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The second listener. Without a port there is none."""

    host: str = "127.0.0.1"
    port: int | None = None
    only_metrics_here: bool = False  # /metrics is gone from the public listener


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Where limits are counted."""

    redis: str | None = None  # redis://, rediss:// or unix://; a password comes from WEFT_REDIS_PASSWORD; None: here
    when_store_fails: StoreFailure = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Seconds that a request of each class may be predicted to wait for its first token, and what is done before."""

    interactive_seconds: float = 5.0
    standard_seconds: float = 15.0
    batch_seconds: float = 120.0
    shed_batch_at: float = 0.5  # load, 1 being the longest wait with which a standard request is let in
    cap_output_at: float = 0.75
    fallback_at: float = 0.9  # of a model that has one to fall back to
    capped_output_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageConfig:
    ledger: Path | None = None  # a database; None: usage is not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """All of the above, as the gateway takes it."""

    auth: AuthConfig = field(default_factory=AuthConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    tiers: Mapping[str, TierConfig] = field(default_factory=dict)
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    usage: UsageConfig = field(default_factory=UsageConfig)


def check_access(access: AccessConfig, where: str, *, has_authority: bool) -> None:
    """Refuses values out of their range, names that lead nowhere, and what would change nothing. `has_authority`:
    clients are asked for certificates. Raises ConfigError."""
    for key, message in _faults(access, has_authority):
        raise ConfigError(f"{where}: {key} {message}", param=key)


def _faults(access: AccessConfig, has_authority: bool) -> Iterator[tuple[str, str]]:
    for table in ("tiers", "tenants"):
        for name in getattr(access, table):
            if not NAME.fullmatch(name):
                yield table, f"must have names of 1 to 128 letters, digits and _ . @ -, not {name!r}"
    for name, tier in access.tiers.items():
        yield from _tier_faults(f"tiers.{name}", tier)
    known = {DEFAULT_TIER, *access.tiers}
    for name, tenant in access.tenants.items():
        if tenant.tier not in known:
            yield f"tenants.{name}.tier", f"must be one of {', '.join(sorted(known))}, not {tenant.tier!r}"
    admission = access.admission
    for name in ("interactive_seconds", "standard_seconds", "batch_seconds"):
        if not 0 < (value := getattr(admission, name)) < math.inf:
            yield f"admission.{name}", f"must be above 0 and finite, not {value}"
    if not 0 < admission.shed_batch_at <= admission.cap_output_at <= 1:
        yield (
            "admission.cap_output_at",
            "and admission.shed_batch_at must lie above 0 and at most at 1, the latter not above the former",
        )
    if not 0 < admission.fallback_at <= 1:
        yield "admission.fallback_at", f"must lie above 0 and at most at 1, not {admission.fallback_at}"
    if admission.capped_output_tokens < 1:
        yield "admission.capped_output_tokens", f"must be at least 1, not {admission.capped_output_tokens}"
    if access.limits.redis is not None and not access.limits.redis.startswith(("redis://", "rediss://", "unix://")):
        yield "limits.redis", "must begin with redis://, rediss:// or unix://"
    if access.limits.redis is None and access.limits.when_store_fails != LimitsConfig().when_store_fails:
        yield "limits.when_store_fails", "needs limits.redis too: what is counted in this process does not fail"
    if access.admin.only_metrics_here and access.admin.port is None:
        yield "admin.only_metrics_here", "needs admin.port too: /metrics would be nowhere"
    if access.admin.port is not None and not 0 <= access.admin.port <= 65535:
        yield "admin.port", f"must be in 0 .. 65535, not {access.admin.port}"
    if access.auth.mode == "none" and access.auth.ways:
        yield (
            "auth.mode",
            f'is "none", which lets everybody in, beside {access.auth.ways[0]}: drop one of the two',
        )
    if access.auth.certificates and not has_authority:
        yield "auth.certificates", "needs server.tls.client_authority too: no client would be asked for a certificate"
    if access.auth.jwt is not None:
        yield from _token_faults(access.auth.jwt)


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _tier_faults(key: str, tier: TierConfig) -> Iterator[tuple[str, str]]:
    for name in ("requests_per_minute", "tokens_per_minute", "concurrency", "output_tokens", "unstated_output_tokens"):
        value = getattr(tier, name)
        if value is not None and value < 1:
            yield f"{key}.{name}", f"must be at least 1, not {value}"
    if tier.context_tokens is not None and tier.context_tokens < 2:
        yield f"{key}.context_tokens", f"must be at least 2, not {tier.context_tokens}"
    if tier.best_priority is not None and _CLASSES.index(tier.best_priority) > _CLASSES.index(tier.priority):
        yield f"{key}.best_priority", f"must not be below {key}.priority ({tier.priority}), as {tier.best_priority} is"
    for name, value in asdict(tier.storage).items():
        if value is not None and value < 0:
            yield f"{key}.storage.{name}", f"must be at least 0, not {value}"
    if not 0 < tier.weight < math.inf:
        yield f"{key}.weight", f"must be above 0 and finite, not {tier.weight}"


def _token_faults(token: TokenConfig) -> Iterator[tuple[str, str]]:
    for name in ("issuer", "audience"):
        if not getattr(token, name):
            yield f"auth.jwt.{name}", "must not be empty"
    if (token.keys_file is None) == (token.keys_url is None):
        yield "auth.jwt.keys_file", "or auth.jwt.keys_url must be given, one of the two"
    if token.keys_url is not None and not _is_safe(token.keys_url):
        yield "auth.jwt.keys_url", "must be an https URL (or http on a loopback address): it says whose word counts"
    wrong = [name for name in token.algorithms if name not in ALGORITHMS]
    if wrong or not token.algorithms:
        yield (
            "auth.jwt.algorithms",
            f"must be some of {', '.join(ALGORITHMS)}: signatures whose check needs no secret of the issuer's"
            + (f"; not {wrong[0]!r}" if wrong else ""),
        )
    if not 0 <= token.leeway_seconds <= 300:
        yield "auth.jwt.leeway_seconds", f"must be in 0 .. 300, not {token.leeway_seconds}"

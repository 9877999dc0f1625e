"""From credentials to a principal, or a refusal that tells an attacker nothing."""

import logging
import sqlite3
import time
from collections.abc import Callable

from serving.access import DEFAULT_TIER, AccessConfig, TierConfig
from serving.errors import AuthenticationError, ConfigError, ForbiddenError, OverloadedError
from serving.gateway.api_key import hash_secret, parse_key, same_hash
from serving.gateway.key_set import key_set_of
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import ANONYMOUS, Credentials, Principal, Scope, anonymous
from serving.gateway.token_verifier import TokenVerifier
from serving.observability.logs import log_failure
from serving.web_names import is_loopback

SINGLE_KEY = "api-key"  # the key id of --api-key
SINGLE_TENANT = "default"
RETRY_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Identity:
    """Where nothing is configured that could tell people apart, everybody is `anonymous`."""

    def __init__(
        self,
        access: AccessConfig,
        *,
        api_key: str | None = None,
        keys: KeyStore | None = None,
        tokens: TokenVerifier | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.keys = keys
        self._access = access
        self._single = None if api_key is None else hash_secret(api_key)
        self._tokens = tokens
        self._now = now
        self.is_open = not must_authenticate(access, api_key)

    async def principal(self, credentials: Credentials) -> Principal:
        """Raises AuthenticationError, ForbiddenError; OverloadedError where keys cannot be looked up now."""
        if self.is_open:
            return anonymous(self._access.tiers.get(DEFAULT_TIER))
        if credentials.secret is not None:
            return await self._by_secret(credentials.secret)
        tenant = self._access.auth.certificates.get(credentials.certificate or "")
        if tenant is None:
            raise AuthenticationError(
                "an API key is needed: send it as Authorization: Bearer KEY", code="missing_api_key"
            )
        return self._of_tenant(tenant, f"certificate:{credentials.certificate}", frozenset((Scope.INFERENCE,)))

    async def _by_secret(self, secret: str) -> Principal:
        if self._single is not None and same_hash(hash_secret(secret), self._single):
            return self._of_tenant(SINGLE_TENANT, SINGLE_KEY, frozenset(Scope))
        if self.keys is not None and (key := parse_key(secret)) is not None:
            try:
                record = self.keys.verify(key)
            except sqlite3.Error as error:
                log_failure(logger, "keys cannot be read", error)
                raise OverloadedError(
                    "API keys cannot be looked up now", retry_after=RETRY_SECONDS, code="auth_unavailable"
                ) from error
            if record is not None:
                if record.disabled:
                    raise AuthenticationError("this API key is disabled", code="disabled_api_key")
                if record.is_expired(self._now()):
                    raise AuthenticationError("this API key has expired", code="expired_api_key")
                return self._of_tenant(record.tenant, record.id, record.scopes)
        if self._tokens is not None and self._tokens.looks_like_one(secret):
            claims = await self._tokens.verify(secret)
            return self._of_tenant(claims.tenant, f"jwt:{claims.subject}", claims.scopes, tier=claims.tier)
        raise AuthenticationError("this API key is not known here")

    def _of_tenant(self, tenant: str, key_id: str, scopes: frozenset[Scope], tier: str | None = None) -> Principal:
        """A tenant that the deployment names has the tier that it says there; another the token's, or the default."""
        if tenant == ANONYMOUS:
            raise ForbiddenError("this tenant's name is the server's own", code="tenant_disabled")
        known = self._access.tenants.get(tenant)
        if known is not None and known.disabled:
            raise ForbiddenError("this tenant is disabled", code="tenant_disabled")
        name = known.tier if known is not None else tier or DEFAULT_TIER
        if name != DEFAULT_TIER and name not in self._access.tiers:
            raise ForbiddenError("the token names a tier that is not known here", code="tier_unknown")
        return Principal(key_id=key_id, tenant=tenant, tier=name, scopes=scopes, limits=self._limits(name))

    def _limits(self, tier: str) -> TierConfig:
        return self._access.tiers.get(tier, TierConfig())


def must_authenticate(access: AccessConfig, api_key: str | None) -> bool:
    auth = access.auth
    configured = api_key is not None or bool(auth.ways)
    return auth.mode != "none" and (configured or auth.mode == "required")


def check_exposure(access: AccessConfig, api_key: str | None, host: str) -> None:
    """A server that asks nobody who they are is for this machine alone, unless somebody wrote that it is not.
    Raises ConfigError."""
    auth = access.auth
    ways = api_key is not None or bool(auth.ways)
    if auth.mode == "none" and ways:
        raise ConfigError(
            'auth.mode is "none", but there are ways to authenticate: drop the one or the other', param="auth.mode"
        )
    if auth.mode == "required" and not ways:
        raise ConfigError(
            'auth.mode is "required", but there is no way to authenticate: set auth.keys, auth.jwt, or WEFT_API_KEY',
            param="auth.mode",
        )
    if api_key is not None and not api_key.strip():
        raise ConfigError("the API key must not be empty", param="api_key")
    if not ways and auth.mode is None and not is_loopback(host):
        raise ConfigError(
            f"server.host is {host}, which other machines can reach, and nothing tells who asks: set WEFT_API_KEY, "
            'auth.keys or auth.jwt; or write auth.mode = "none" where everybody there may use it',
            param="auth.mode",
        )
    if access.admin.port is not None and not ways and not is_loopback(access.admin.host):
        raise ConfigError(
            f"admin.host is {access.admin.host}, which other machines can reach: that needs a way to authenticate",
            param="admin.host",
        )


def identity_of(access: AccessConfig, api_key: str | None) -> Identity:
    """Raises ConfigError."""
    auth = access.auth
    return Identity(
        access,
        api_key=api_key,
        keys=None if auth.keys is None else KeyStore(auth.keys),
        tokens=None if auth.jwt is None else TokenVerifier(auth.jwt, key_set_of(auth.jwt)),
    )

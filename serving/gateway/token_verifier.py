"""JSON Web Tokens of one issuer. Algorithms are those of the deployment, all of them asymmetric: a token can neither
go unsigned nor be signed with a public key taken for a secret."""

from dataclasses import dataclass
from typing import Any

import jwt

from serving.access import NAME, TokenConfig
from serving.errors import AuthenticationError, ForbiddenError
from serving.gateway.key_set import KeySet
from serving.gateway.principal import Scope

_REQUIRED = ["exp", "iss", "aud", "sub"]
_SCOPE_PREFIX = "weft:"
_MOST_SUBJECT_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClaims:
    subject: str
    tenant: str
    tier: str | None
    scopes: frozenset[Scope]


class TokenVerifier:
    def __init__(self, config: TokenConfig, keys: KeySet) -> None:
        self._config = config
        self._keys = keys

    @staticmethod
    def looks_like_one(secret: str) -> bool:
        return secret.count(".") == 2 and secret.startswith("ey")

    async def verify(self, token: str) -> TokenClaims:
        """Raises AuthenticationError; ForbiddenError for a good token that names no tenant; OverloadedError where the
        issuer's keys cannot be had."""
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in config.algorithms or "crit" in header or not isinstance(key_id, str | None):
                raise _invalid("it is signed in a way that this server does not take")
            key = await self._keys.find(key_id, algorithm)
            if key is None:
                raise _invalid("no key of its issuer's fits it")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=config.audience,
                issuer=config.issuer,
                leeway=config.leeway_seconds,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError:
            raise _invalid("it has expired", code="expired_token") from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _invalid("its signature, issuer, audience or time is not right") from None
        return self._mapped(claims)

    def _mapped(self, claims: dict[str, Any]) -> TokenClaims:
        tenant, tier = claims.get(self._config.tenant_claim), claims.get(self._config.tier_claim)
        if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
            raise ForbiddenError("the token names no tenant", code="tenant_missing")
        if tier is not None and not isinstance(tier, str):
            raise ForbiddenError("the token's tier is not a name", code="tier_unknown")
        return TokenClaims(
            subject=str(claims["sub"])[:_MOST_SUBJECT_CHARS],
            tenant=tenant,
            tier=tier,
            scopes=_scopes(claims.get(self._config.scope_claim), required=self._config.scope_required),
        )


def _scopes(claim: object, *, required: bool) -> frozenset[Scope]:
    """`weft:inference weft:usage`, in one string or in a list. Without the claim, unless it is required: inference."""
    if claim is None and not required:
        return frozenset((Scope.INFERENCE,))
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset(scope for scope in Scope if f"{_SCOPE_PREFIX}{scope.value}" in words)


def _invalid(why: str, *, code: str = "invalid_token") -> AuthenticationError:
    return AuthenticationError(f"the token is refused: {why}", code=code)

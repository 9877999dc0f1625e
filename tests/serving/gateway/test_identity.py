import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from serving.access import AccessConfig, AdminConfig, AuthConfig, TenantConfig, TierConfig, TokenConfig
from serving.engine.request import Priority
from serving.errors import AuthenticationError, ConfigError, ForbiddenError, OverloadedError
from serving.gateway.authorization import secret_of
from serving.gateway.identity import Identity, check_exposure, identity_of
from serving.gateway.key_set import AGAIN_SECONDS, FRESH_SECONDS, KeySet, KeySetError
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Credentials, Scope
from serving.gateway.token_verifier import TokenVerifier
from tests.serving.gateway.clock import Clock

ISSUER, AUDIENCE = "https://login.example", "weft"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
TIERS = {"gold": TierConfig(priority="interactive", weight=4.0), "default": TierConfig(requests_per_minute=7)}


def jwk(key: Any, name: str, **more: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name, **more}


KEYS = [jwk(RSA_KEY, "one"), jwk(EC_KEY, "two")]
CONFIG = TokenConfig(issuer=ISSUER, audience=AUDIENCE, keys_file=Path("unused"))


def claims(**changed: Any) -> dict[str, Any]:
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 600, "tenant": "acme"}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def token(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "one", **changed: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changed), key, algorithm=algorithm, headers=headers)


def unsigned(header: dict[str, Any], body: dict[str, Any], signature: str = "") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, body)]
    return ".".join([*parts, signature])


class Issuer:
    def __init__(self, keys: list[dict[str, Any]] = KEYS) -> None:
        self.keys = keys
        self.asked = 0
        self.down = False

    async def read(self) -> bytes:
        self.asked += 1
        if self.down:
            raise KeySetError("down")
        return json.dumps({"keys": self.keys}).encode()


def identity(
    issuer: Issuer | None = None, clock: Clock | None = None, config: TokenConfig = CONFIG, **auth: Any
) -> Identity:
    key_set = KeySet((issuer or Issuer()).read, now=clock or Clock())
    access = AccessConfig(
        auth=AuthConfig(jwt=config, **auth),
        tiers=TIERS,
        tenants={"rich": TenantConfig(tier="gold"), "gone": TenantConfig(disabled=True)},
    )
    return Identity(access, api_key="the one key of all", tokens=TokenVerifier(config, key_set))


async def principal_of(found: Identity, secret: str | None, certificate: str | None = None) -> Any:
    return await found.principal(Credentials(secret=secret, certificate=certificate))


async def test_a_good_token_gives_tenant_tier_and_scopes() -> None:
    found = await principal_of(identity(), token(scope="weft:inference weft:usage other"))
    assert (found.tenant, found.key_id, found.tier) == ("acme", "jwt:ann", "default")
    assert found.scopes == {Scope.INFERENCE, Scope.USAGE}
    assert found.limits.requests_per_minute == 7
    rich = await principal_of(identity(), token(EC_KEY, "ES256", "two", tenant="rich", tier="default"))
    assert (rich.tier, rich.priority, rich.weight) == ("gold", Priority.INTERACTIVE, 4.0)
    chosen = await principal_of(identity(), token(tier="gold"))
    assert chosen.tier == "gold"


PUBLIC = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def confused() -> str:
    """HS256 with the public key as the secret: what a verifier that trusts `alg` would take."""
    import hashlib
    import hmac

    head = unsigned({"alg": "HS256", "kid": "one", "typ": "JWT"}, claims()).rstrip(".")
    mac = hmac.new(PUBLIC, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


BAD_TOKENS = {
    "alg none": lambda: unsigned({"alg": "none", "kid": "one"}, claims()),
    "alg None": lambda: unsigned({"alg": "None"}, claims()),
    "no alg": lambda: unsigned({"kid": "one"}, claims()),
    "alg is a list": lambda: unsigned({"alg": ["RS256"], "kid": "one"}, claims()),
    "HS256 with the public key": confused,
    "an algorithm that is not listed": lambda: token(algorithm="PS256"),
    "the kind of another key": lambda: token(RSA_KEY, "RS256", "two"),
    "another's signature": lambda: token(rsa.generate_private_key(65537, 2048)),
    "changed": lambda: token()[:-6] + "AAAAAA",
    "expired": lambda: token(exp=time.time() - 120),
    "not yet": lambda: token(nbf=time.time() + 600),
    "without an end": lambda: token(exp=None),
    "without a subject": lambda: token(sub=None),
    "another issuer": lambda: token(iss="https://evil.example"),
    "another audience": lambda: token(aud="else"),
    "key id is a number": lambda: unsigned({"alg": "RS256", "kid": 7}, claims(), "AAAA"),
    "unknown key": lambda: token(kid="three"),
    "critical header": lambda: jwt.encode(claims(), RSA_KEY, "RS256", headers={"kid": "one", "crit": ["exp"]}),
    "a key of its own": lambda: jwt.encode(
        claims(), EC_KEY, "ES256", headers={"kid": "x", "jwk": jwk(EC_KEY, "x"), "jku": "https://evil.example"}
    ),
    "garbage": lambda: "eyJ.eyJ.e30",
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_a_bad_token_is_refused(name: str) -> None:
    with pytest.raises(AuthenticationError):
        await principal_of(identity(), BAD_TOKENS[name]())


async def test_a_token_without_a_tenant_or_of_an_unknown_tier_may_do_nothing() -> None:
    for changed in ({"tenant": None}, {"tenant": "a b"}, {"tier": "platinum"}, {"tier": 7}, {"tenant": "gone"}):
        with pytest.raises(ForbiddenError):
            await principal_of(identity(), token(**changed))
    with pytest.raises(ForbiddenError):
        await principal_of(identity(), token(tenant="anonymous"))


async def test_a_token_without_scopes_of_weft_has_none() -> None:
    found = await principal_of(identity(), token(scope="openid admin inference"))
    assert not found.scopes
    with pytest.raises(ForbiddenError):
        found.require(Scope.INFERENCE)


async def test_a_token_that_says_nothing_of_scopes_has_inference_unless_it_must_say() -> None:
    assert (await principal_of(identity(), token())).scopes == {Scope.INFERENCE}
    strict = identity(config=replace(CONFIG, scope_required=True))
    assert not (await principal_of(strict, token())).scopes
    assert (await principal_of(strict, token(scope="weft:inference"))).scopes == {Scope.INFERENCE}


async def test_secret_keys_and_short_ones_of_a_key_set_are_not_used() -> None:
    short = rsa.generate_private_key(65537, 1024)
    secret = {"kty": "oct", "k": "AAAA", "kid": "s", "alg": "HS256"}
    found = identity(Issuer([jwk(short, "short"), secret, jwk(RSA_KEY, "enc", use="enc")]))
    for bad in (token(short, kid="short"), token(kid="enc"), unsigned({"alg": "HS256", "kid": "s"}, claims(), "x")):
        with pytest.raises(AuthenticationError):
            await principal_of(found, bad)


async def test_unknown_key_ids_do_not_make_the_server_ask_the_issuer_each_time(clock: Clock) -> None:
    issuer = Issuer()
    found = identity(issuer, clock)
    for _ in range(20):
        with pytest.raises(AuthenticationError):
            await principal_of(found, token(kid="nobody"))
    assert issuer.asked == 1
    issuer.keys = [*KEYS, jwk(RSA_KEY, "three")]
    clock.pass_(AGAIN_SECONDS)
    assert (await principal_of(found, token(kid="three"))).tenant == "acme"
    assert issuer.asked == 2


async def test_keys_that_were_read_count_on_while_the_issuer_is_down_but_not_for_ever(clock: Clock) -> None:
    issuer = Issuer()
    found = identity(issuer, clock)
    await principal_of(found, token())
    issuer.down = True
    clock.pass_(2 * FRESH_SECONDS)
    await principal_of(found, token())
    clock.pass_(90_000)
    with pytest.raises(OverloadedError) as refused:
        await principal_of(found, token())
    assert refused.value.code == "auth_unavailable"


async def test_the_single_key_lets_in_and_no_other_text_does() -> None:
    found = await principal_of(identity(), "the one key of all")
    assert (found.tenant, found.scopes) == ("default", frozenset(Scope))
    for secret in ("the one key of al", "the one key of all ", "", "x", "weft_aaaaaaaaaaaa_" + "A" * 43):
        with pytest.raises(AuthenticationError):
            await principal_of(identity(), secret)
    with pytest.raises(AuthenticationError) as refused:
        await principal_of(identity(), None)
    assert refused.value.code == "missing_api_key"


async def test_a_certificate_is_a_tenant_only_where_the_deployment_says_so() -> None:
    found = await principal_of(identity(certificates={"worker.internal": "acme"}), None, "worker.internal")
    assert (found.tenant, found.scopes) == ("acme", {Scope.INFERENCE})
    with pytest.raises(AuthenticationError):
        await principal_of(identity(certificates={"worker.internal": "acme"}), None, "other.internal")


async def test_keys_that_are_off_or_late_say_so_only_to_who_has_them(tmp_path: Path, clock: Clock) -> None:
    store = KeyStore(tmp_path / "keys", now=clock)
    off, late = store.create("acme", [Scope.INFERENCE]), store.create("acme", [Scope.INFERENCE], expires=clock.now)
    store.disable(off.id, disabled=True)
    found = Identity(AccessConfig(auth=AuthConfig(keys=tmp_path / "keys")), keys=store, now=clock)
    for key, code in ((off, "disabled_api_key"), (late, "expired_api_key")):
        with pytest.raises(AuthenticationError) as refused:
            await principal_of(found, key.text)
        assert refused.value.code == code
        with pytest.raises(AuthenticationError) as refused:
            await principal_of(found, key.text[:-4] + "AAAA")
        assert refused.value.code == "invalid_api_key"


def test_a_secret_is_read_from_bearer_basic_and_x_api_key_and_from_nothing_else() -> None:
    basic = base64.b64encode(b"anybody:secret:with:colons").decode()
    assert secret_of({"authorization": "Bearer abc"}) == "abc"
    assert secret_of({"authorization": "bearer  abc "}) == "abc"
    assert secret_of({"authorization": f"Basic {basic}"}) == "secret:with:colons"
    assert secret_of({"x-api-key": "abc"}) == "abc"
    assert secret_of({}) is None
    for bad in ("abc", "Digest abc", "Bearer", "Bearer ", "Basic !!", "Bearer " + "x" * 9000, ""):
        with pytest.raises(AuthenticationError):
            secret_of({"authorization": bad, "x-api-key": "abc"})


@pytest.mark.parametrize(
    ("access", "api_key", "host", "fault"),
    [
        (AccessConfig(), None, "0.0.0.0", "auth.mode"),
        (AccessConfig(), None, "::", "auth.mode"),
        (AccessConfig(), None, "box.lan", "auth.mode"),
        (AccessConfig(auth=AuthConfig(mode="none")), "key", "127.0.0.1", "auth.mode"),
        (AccessConfig(auth=AuthConfig(mode="required")), None, "127.0.0.1", "auth.mode"),
        (AccessConfig(admin=AdminConfig(host="0.0.0.0", port=1)), None, "127.0.0.1", "admin.host"),
        (AccessConfig(auth=AuthConfig(mode="none"), admin=AdminConfig(host="::", port=1)), None, "::", "admin.host"),
        (AccessConfig(), " ", "127.0.0.1", "api_key"),
    ],
)
def test_a_server_that_others_reach_without_a_word_about_who_they_are_does_not_start(
    access: AccessConfig, api_key: str | None, host: str, fault: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_exposure(access, api_key, host)
    assert refused.value.param == fault


@pytest.mark.parametrize(
    ("access", "api_key", "host"),
    [
        (AccessConfig(), None, "127.0.0.1"),
        (AccessConfig(), None, "::1"),
        (AccessConfig(), "key", "0.0.0.0"),
        (AccessConfig(auth=AuthConfig(mode="none")), None, "0.0.0.0"),
        (AccessConfig(auth=AuthConfig(keys=Path("k"))), None, "0.0.0.0"),
    ],
)
def test_what_is_safe_or_was_written_out_starts(access: AccessConfig, api_key: str | None, host: str) -> None:
    check_exposure(access, api_key, host)


async def test_an_open_server_knows_everybody_as_one_tenant_with_the_default_tiers_limits() -> None:
    found = identity_of(AccessConfig(tiers=TIERS), None)
    assert found.is_open
    for secret in (None, "unused"):
        principal = await principal_of(found, secret)
        assert (principal.tenant, principal.limits.requests_per_minute) == ("anonymous", 7)

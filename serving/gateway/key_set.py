"""An issuer's public keys (a JWKS document), from a file or from its URL, kept for a while."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from serving.access import TokenConfig
from serving.errors import OverloadedError
from serving.observability.logs import log_event

FRESH_SECONDS = 600.0  # then it is read again
STALE_SECONDS = 86_400.0  # so long old keys count while the issuer cannot be read
AGAIN_SECONDS = 30.0  # between two attempts, whatever tokens ask for: an unknown key id costs the issuer nothing
FETCH_SECONDS = 5.0
MOST_BYTES = 256 << 10
MOST_KEYS = 64
LEAST_RSA_BITS = 2048
RETRY_SECONDS = 5.0

_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}  # an algorithm's first letters: the kty that it takes

logger = logging.getLogger(__name__)

Read = Callable[[], Awaitable[bytes]]


class KeySetError(Exception):
    """The document cannot be had, or is none."""


class KeySet:
    def __init__(self, read: Read, *, now: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._now = now
        self._keys: list[Mapping[str, Any]] = []
        self._made: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()

    async def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key of that id that is of the algorithm's kind; without an id the only one that is. None where there is
        none. Raises OverloadedError where no key was ever read, or not for a day."""
        if self._age() > FRESH_SECONDS:
            await self._refresh()
        found = self._find(key_id, algorithm)
        if found is None and await self._refresh():  # the issuer may have a new one
            found = self._find(key_id, algorithm)
        if self._age() > STALE_SECONDS:
            raise OverloadedError(
                "the issuer's keys cannot be read now, so its tokens cannot be checked",
                retry_after=RETRY_SECONDS,
                code="auth_unavailable",
            )
        return found

    def _age(self) -> float:
        return float("inf") if self._read_at is None else self._now() - self._read_at

    def _find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        if (key_id, algorithm) not in self._made:
            fitting = [key for key in self._keys if _fits(key, key_id, algorithm)]
            if len(fitting) != 1:
                return None
            made = _made(fitting[0], algorithm)
            if made is None:
                return None
            self._made[key_id, algorithm] = made
        return self._made[key_id, algorithm]

    async def _refresh(self) -> bool:
        """Whether it was read anew. Never twice within AGAIN_SECONDS."""
        async with self._reading:
            if self._tried_at is not None and self._now() - self._tried_at < AGAIN_SECONDS:
                return False
            self._tried_at = self._now()
            try:
                self._keys = _parsed(await self._read())
            except KeySetError as error:
                log_event(logger, "issuer's keys not read", level=logging.WARNING, reason=str(error))
                return False
            self._made.clear()
            self._read_at = self._now()
            return True


def key_set_of(config: TokenConfig) -> KeySet:
    if config.keys_file is not None:
        return KeySet(_file_reader(config.keys_file))
    assert config.keys_url is not None  # `check_access` saw to it
    return KeySet(_url_reader(config.keys_url))


def _file_reader(path: Path) -> Read:
    async def read() -> bytes:
        try:
            return await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise KeySetError(f"the file cannot be read: {error.strerror or type(error).__name__}") from error

    return read


def _url_reader(url: str) -> Read:
    """No redirects: the URL says whose word counts."""

    async def read() -> bytes:
        data = bytearray()
        try:
            async with (
                asyncio.timeout(FETCH_SECONDS),
                httpx.AsyncClient(follow_redirects=False) as client,
                client.stream("GET", url, headers={"accept-encoding": "identity"}) as reply,
            ):
                if reply.status_code != 200:
                    raise KeySetError(f"the issuer answered {reply.status_code}")
                async for part in reply.aiter_raw():
                    data += part
                    if len(data) > MOST_BYTES:
                        raise KeySetError(f"the document is larger than {MOST_BYTES} bytes")
        except (httpx.HTTPError, TimeoutError) as error:
            raise KeySetError(f"the issuer cannot be reached: {type(error).__name__}") from error
        return bytes(data)

    return read


def _parsed(document: bytes) -> list[Mapping[str, Any]]:
    try:
        keys = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeySetError("the document is no JWKS") from error
    if not isinstance(keys, list) or len(keys) > MOST_KEYS:
        raise KeySetError(f"the document must hold a list of at most {MOST_KEYS} keys")
    return [key for key in keys if isinstance(key, dict)]


def _fits(key: Mapping[str, Any], key_id: str | None, algorithm: str) -> bool:
    return (
        (key_id is None or key.get("kid") == key_id)
        and key.get("kty") == _KINDS[algorithm[:2]]
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
    )


def _made(key: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    try:
        made = jwt.PyJWK(dict(key), algorithm=algorithm)
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        log_event(logger, "issuer's key not usable", level=logging.WARNING, reason=type(error).__name__)
        return None
    if isinstance(made.key, RSAPublicKey) and made.key.key_size < LEAST_RSA_BITS:
        log_event(logger, "issuer's key not usable", level=logging.WARNING, reason="its RSA modulus is too short")
        return None
    return made

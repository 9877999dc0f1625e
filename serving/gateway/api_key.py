"""API keys: `weft_ID_SECRET`. The id is public and finds the key; the secret is 256 random bits and is kept as a hash.

SHA-256, and not Argon2 or scrypt: slow hashes protect secrets that can be guessed. No one guesses 256 random bits, at
any speed; and a slow hash would let anybody burn a core with false keys.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_KEY = re.compile(r"weft_(?P<id>[a-z0-9]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        return f"weft_{self.id}_{self.secret}"


def new_key() -> ApiKey:
    return ApiKey("".join(secrets.choice(_ID_ALPHABET) for _ in range(12)), new_secret())


def new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def parse_key(text: str) -> ApiKey | None:
    """None where it is no key of this form."""
    found = _KEY.fullmatch(text)
    return None if found is None else ApiKey(found["id"], found["secret"])


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def same_hash(first: bytes, second: bytes) -> bool:
    """In a time that does not depend on where they differ."""
    return hmac.compare_digest(first, second)

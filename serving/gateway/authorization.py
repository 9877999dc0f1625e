"""The secret out of a request's headers, or of gRPC metadata."""

import base64
import binascii
from collections.abc import Mapping

from serving.errors import AuthenticationError

MOST_SECRET_CHARS = 8192


def secret_of(headers: Mapping[str, str]) -> str | None:
    """`Authorization: Bearer SECRET`, `Authorization: Basic` with the secret as the password (what a browser asks a
    person for), or `X-Api-Key: SECRET`. None where there is none of them. Raises AuthenticationError."""
    value = headers.get("authorization")
    if value is None:
        secret = headers.get("x-api-key")
    else:
        scheme, _, rest = value.strip().partition(" ")
        secret = rest.strip()
        if scheme.lower() == "basic":
            secret = _password(secret)
        elif scheme.lower() != "bearer":
            raise AuthenticationError("Authorization must be Bearer, followed by an API key", code="invalid_scheme")
    if secret is not None and not 0 < len(secret) <= MOST_SECRET_CHARS:
        raise AuthenticationError(f"the API key must have 1 to {MOST_SECRET_CHARS} characters")
    return secret


def _password(encoded: str) -> str:
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise AuthenticationError("Authorization: Basic is not valid", code="invalid_scheme") from None
    return text.partition(":")[2]

"""Secrets come from the environment: a deployment file is copied, printed and kept with the code."""

from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from serving.errors import ConfigError
from serving.settings.postgres import PASSWORD_VARIABLE


def check_no_passwords(addresses: Mapping[str, str | None], where: str) -> None:
    """`addresses` of stores, by their keys; a user's name may stand in one. Raises ConfigError, without the address."""
    for key, address in addresses.items():
        if address is not None and _has_password(address):
            variable = "WEFT_REDIS_PASSWORD" if address.startswith(("redis", "unix")) else PASSWORD_VARIABLE
            raise ConfigError(f"{where}: {key} must hold no password: {variable} does", param=key)


def _has_password(address: str) -> bool:
    parts = urlsplit(address)
    return parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True)

"""Host names and origins in the one form in which they are compared: lower case, addresses written one way."""

import ipaddress
import re

ANY = "*"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{0,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>.+)")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def host_of(authority: str) -> str | None:
    """The host of a Host header's value, without its port. None where it is not one."""
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else host_name(found["host"])


def host_name(text: str) -> str | None:
    """A name or address without a port, in brackets or not. None where it is neither."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass  # a name
    found = _AUTHORITY.fullmatch(text)
    if found is None or found["port"] is not None or text.startswith("["):
        return None
    return text.lower().removesuffix(".") or None


def host_and_port(text: str) -> tuple[str, int] | None:
    """Of NAME:PORT, or [ADDRESS]:PORT for one of IPv6. None where it is not that."""
    found = _AUTHORITY.fullmatch(text)
    host = None if found is None else host_name(found["host"])
    if found is None or host is None or not found["port"] or not 0 < int(found["port"]) < 65536:
        return None
    return host, int(found["port"])


def origin_of(text: str) -> str | None:
    """`scheme://host[:port]`, with the port left out where it is the scheme's own. None where it is not an origin."""
    found = _ORIGIN.fullmatch(text.lower())
    authority = _AUTHORITY.fullmatch(found["authority"]) if found else None
    host = host_of(found["authority"]) if found else None
    if found is None or authority is None or host is None:
        return None
    shown = f"[{host}]" if ":" in host else host
    port = authority["port"]
    return f"{found['scheme']}://{shown}{f':{port}' if port and port != _DEFAULT_PORTS.get(found['scheme']) else ''}"


def is_loopback(host: str) -> bool:
    """Whether what listens there can be reached from this machine alone."""
    name = host_name(host)
    if name is None:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def is_unspecified(host: str) -> bool:
    """Whether to listen there is to listen on every address of this machine."""
    name = host_name(host)
    try:
        return name is not None and ipaddress.ip_address(name).is_unspecified
    except ValueError:
        return False  # a name


def own_names(host: str) -> frozenset[str]:
    """What a server that listens on `host` is always called: no foreign page can be served under these."""
    name = host_name(host.partition("%")[0])  # without an IPv6 zone
    return frozenset((*_LOOPBACK, *((name,) if name else ())))

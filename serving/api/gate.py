"""Who may ask: which names this server answers to, and pages of which origins may call it.

A page on the internet can make its own name point to 127.0.0.1 and so become, for the browser, the origin that it asks
(DNS rebinding); but its name stands in the Host header. And any page can send requests to any address; but its browser
writes the page's origin into them.
"""

import re
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from serving.config import ServerConfig
from serving.gateway.rate_fields import REPLY_FIELDS
from serving.web_names import ANY, host_name, host_of, origin_of, own_names

PROBED_PATHS = frozenset(("/health", "/health/live", "/health/ready"))
PREFLIGHT_SECONDS = 600

_READING = ("GET", "HEAD", "OPTIONS")
_EXPOSED = ", ".join(("x-request-id", "x-client-request-id", "retry-after, x-weft-stream-id", *REPLY_FIELDS))
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2048}")


class Gate:
    """Raises HTTPException: 421 for another server's name, 403 for a foreign page that would change something, 400 for
    a Host header that is missing, given twice or malformed."""

    def __init__(self, server: ServerConfig) -> None:
        given = server.allowed_hosts or ()
        self._any_host = ANY in given
        self._hosts = own_names(server.host) | {host_name(text) for text in given}
        self._origins = frozenset(filter(None, map(origin_of, server.allowed_origins)))

    def admit(self, scope: Scope) -> "Admission":
        """Raises HTTPException."""
        headers = Headers(scope=scope)
        if scope["path"] not in PROBED_PATHS:  # those tell nothing, and probes ask by address
            self._check_host(headers.getlist("host"), scope["http_version"])
        origins = headers.getlist("origin")
        named = origin_of(origins[0]) if len(origins) == 1 else None
        granted = origins[0] if named in self._origins else None
        if origins and granted is None and not _only_reads(scope) and not _from_this_server(named, headers):
            raise HTTPException(
                403,
                f"a page of {_shown(origins[0])} may not call this server: only its own pages and those of "
                "server.allowed_origins may",
            )
        return Admission(granted, vary=bool(self._origins))

    def _check_host(self, values: list[str], http_version: str) -> None:
        if self._any_host:
            return
        if len(values) > 1:
            raise HTTPException(400, "the Host header is given more than once")
        if not values:
            if http_version != "1.0":
                raise HTTPException(400, "the Host header is missing")
            raise HTTPException(421, 'without a Host header this server answers only if server.allowed_hosts has "*"')
        host = host_of(values[0])
        if host is None:
            raise HTTPException(400, "the Host header is not a host name or address with an optional port")
        if host not in self._hosts:
            raise HTTPException(
                421,
                f"this server is not called {_shown(host)}: if it is to answer to that name, add it to "
                "server.allowed_hosts",
            )


class Admission:
    """What an admitted request's reply says to browsers. `origin` is the page's where it is one of allowed_origins."""

    def __init__(self, origin: str | None, *, vary: bool) -> None:
        self.headers: dict[str, str] = {}
        self.vary = vary  # with other origins the reply would have other headers
        self._origin = origin
        if origin is not None:
            self.headers = {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED}

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a browser that asks before it lets a page of an allowed origin send a request."""
        headers = Headers(scope=scope)
        if self._origin is None or scope.get("method") != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        allowed: Mapping[str, str] = {
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        }
        wanted = headers.get("access-control-request-headers", "")
        if wanted and _FIELD_NAMES.fullmatch(wanted):
            allowed = {**allowed, "access-control-allow-headers": wanted}
        if headers.get("access-control-request-private-network") == "true":
            allowed = {**allowed, "access-control-allow-private-network": "true"}
        return Response(status_code=204, headers=allowed)


def _only_reads(scope: Scope) -> bool:
    """A browser lets any page open a WebSocket, and read from it: so that counts as changing something."""
    return scope["type"] == "http" and scope["method"] in _READING


def _from_this_server(origin: str | None, headers: Headers) -> bool:
    """A page that this server, or the proxy before it, has served itself. The browser says so; an older one leaves the
    Host header to be compared, of whose scheme a proxy with TLS does not tell."""
    if headers.get("sec-fetch-site") == "same-origin":
        return True
    host = headers.get("host", "")
    return origin is not None and origin in (origin_of(f"http://{host}"), origin_of(f"https://{host}"))


def _shown(text: str) -> str:
    return repr(text[:100])

"""Where a fetch may go: the public internet, and not what lies behind this machine's own network.

A name is resolved here, once; every address that it has is judged, and the connection goes to the one that was. Whoever
answers for the name cannot give another address to the connection than to the check.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS = {"http": 80, "https": 443}
# Public by their number, but a cloud's own service to its machines.
_NOT_PUBLIC = frozenset([ipaddress.ip_address("168.63.129.16")])
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")  # RFC 8215: for use within a network, in its own layout
_COMPATIBLE = ipaddress.ip_network("::/96")


class AddressRefusedError(Exception):
    """The text is for the model: it says nothing of what lies at the address."""


class PublicAddresses:
    """`allowed` are networks that may be reached though they are not public, and there any port."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed: list[Network] = [ipaddress.ip_network(network) for network in allowed]

    async def resolve(self, scheme: str, host: str, port: int | None) -> str:
        """The address to connect to. Raises AddressRefusedError where one of the name's may not be reached."""
        if scheme not in _PORTS:
            raise AddressRefusedError("only http and https addresses can be fetched")
        number = port or _PORTS[scheme]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, number, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise AddressRefusedError(f"the name {host[:200]!r} cannot be resolved") from None
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        for address in addresses:
            if self._is_allowed(address):
                continue
            if not is_public(address):
                raise AddressRefusedError(f"{host[:200]!r} is not on the public internet")
            if number not in _PORTS.values():
                raise AddressRefusedError(f"the port {number} is none of the web's: 80 and 443")
        return str(addresses[0])

    def _is_allowed(self, address: Address) -> bool:
        return any(address in network for network in self._allowed)


def is_public(address: Address) -> bool:
    """False for loopback, private, link-local (where clouds keep their metadata), multicast and reserved addresses,
    and for IPv6 addresses that carry such an IPv4 address within them."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _carried(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local or address in _LOCAL_NAT64:
            return False
    refused = address.is_multicast or address.is_reserved or address.is_unspecified or address in _NOT_PUBLIC
    return address.is_global and not refused


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _COMPATIBLE or address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


class PinnedTransport(httpx.AsyncBaseTransport):
    """Connects to the address that was judged, under the name that was asked for: also at each redirect."""

    def __init__(self, addresses: PublicAddresses) -> None:
        self._addresses = addresses
        # No connection is used again: one to a shared address was verified for another name.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._inner = httpx.AsyncHTTPTransport(trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        # As `Host` says it: Python would encode the letters of another alphabet by older rules, as another name.
        host = url.raw_host.decode("ascii")
        address = await self._addresses.resolve(url.scheme, host, url.port)
        pinned = httpx.Request(
            request.method,
            url.copy_with(host=address),
            headers=request.headers,  # `Host` among them, with the name
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()

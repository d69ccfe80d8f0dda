"""Where a request comes from, also behind reverse proxies that the config trusts."""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from aiohttp import web

from flettner.primitives.address import Address, parse_ip

FORWARDED: Final = "X-Forwarded-For"
MOST_HOPS: Final = 16  # more proxies in a row than anybody has
PREFIX: Final = 64  # bits of an IPv6 address that one host or site is given whole (RFC 6177)
UNIX: Final = "the unix socket"

Ip = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ClientAddresses:
    """Each proxy appends the address that it sees; what stands before the first foreign one is a claim."""

    trusted: Collection[Network] = ()

    def find(self, request: web.Request) -> Ip | None:
        """The nearest address that is no trusted proxy's; None for the unix socket.

        A proxy's own if what it appended is no address.
        """
        address = parse_ip(request.remote or "")
        hops = ",".join(request.headers.getall(FORWARDED, ())).rsplit(",", MOST_HOPS)[-MOST_HOPS:]
        while address is not None and hops and self.trusts(address):
            before = _parse_hop(hops.pop())
            if before is None:
                break
            address = before
        return address

    def misses_proxy(self, request: web.Request) -> bool:
        """Whether the peer speaks for another address and is not trusted: a proxy that the config lacks."""
        peer = parse_ip(request.remote or "")
        return FORWARDED in request.headers and peer is not None and not self.trusts(peer)

    def trusts(self, address: Ip) -> bool:
        return any(address in network for network in self.trusted)


def group_of(address: Ip | None) -> str:
    """What counts as one client: an IPv4 address, or the part of an IPv6 one that a site cannot change."""
    if isinstance(address, IPv6Address):
        return f"from {IPv6Network((int(address), PREFIX), strict=False)}"
    return f"from {address or UNIX}"


def _parse_hop(text: str) -> Ip | None:
    """Some proxies append the port, too."""
    hop = text.strip()
    if "%" in hop:  # a zone's name is any text
        return None
    if (address := parse_ip(hop.removeprefix("[").removesuffix("]"))) is not None:
        return address
    try:
        return parse_ip(Address.parse(hop).host)
    except ValueError:
        return None

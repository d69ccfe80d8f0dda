"""Options of the API: its addresses, TLS, and roles granted without a token."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from flettner.primitives.address import Address, Listener, UnixSocket

Role = Literal["viewer", "operator", "admin"]
LONGEST_NAME = 100  # bytes of UTF-8

SOCKET = UnixSocket(Path("/run/flettner/api.sock"))
"""Default address of the API, also for the commands."""


def check_principal(name: str) -> str:
    """Return the name, which journal entries and terminals show. Raises ValueError."""
    if not name.strip() or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"must be 1 to {LONGEST_NAME} bytes of printable characters")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The server's TLS files. With `client_ca`, clients need a certificate that it signed."""

    chain: Path
    key: Path
    client_ca: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """TCP beyond loopback needs a certificate."""

    listen: tuple[Listener, ...]
    hosts: tuple[str, ...]  # accepted Host names besides those of loopback
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()  # that say from where a request comes
    health: Address | None = None  # for probes: plain HTTP without tokens
    tokens_file: Path | None
    certificate: Certificate | None
    users: Mapping[str, Role]  # of the unix socket, by name or number
    groups: Mapping[str, Role]
    certificates: Mapping[str, Role]  # by a name in the client's certificate

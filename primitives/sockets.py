"""Free ports, the addresses behind a name, and whether a unix socket is served."""

import asyncio
import errno
import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import product
from pathlib import Path

from flettner.primitives.address import Address, parse_ip


def find_free_port(ports: Iterable[int] = (0,), *, taken: Collection[int] = (), host: str = "") -> int:
    """Find a port that no process listens on, preferably one without old connections. Raises OSError.

    `ports`: in this order; 0 lets the kernel choose. `host`: an IP address; empty for all interfaces.
    """
    candidates = [port for port in ports if port not in taken]
    for reuse, port in product((False, True), candidates):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    raise OSError(errno.EADDRINUSE, "no port is free")


async def resolve(address: Address) -> list[Address]:
    """The addresses behind the name; an IP address is its own, and needs no thread of the resolver.

    Raises OSError if the name does not resolve.
    """
    if parse_ip(address.host) is not None:
        return [address]
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in infos)
    return [Address(host, address.port) for host in hosts]


def probe_socket(path: Path, timeout_s: float = 1.0) -> None:
    """Raises OSError if no process listens on the unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        probe.connect(str(path))


def is_listening(path: Path) -> bool:
    """Whether a process listens on the unix socket."""
    try:
        probe_socket(path)
    except OSError:
        return False
    return True

"""Servers behind one name: a headless Service of Kubernetes resolves to the pods that are ready.

Their pages are read as one: each pod becomes an engine of its own, as a data-parallel rank of one process is.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Mapping

_ENGINE_LABEL = b'engine="'


async def resolve(address: str) -> tuple[str, ...]:
    """Return `HOST:PORT` of each address that the name has now, sorted; an IP address is its own.

    Raises OSError if the name does not resolve.
    """
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
        hosts = {str(where[0]) for _, _, _, _, where in found}
        return tuple(sorted(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts))
    return (address,)


def join_pages(pages: Mapping[str, bytes]) -> bytes:
    """Return the pages of several servers as one, each engine's label with its server's address before it."""
    if len(pages) == 1:
        return next(iter(pages.values()))
    return b"\n".join(
        page.replace(_ENGINE_LABEL, _ENGINE_LABEL + address.encode() + b"/")
        for address, page in pages.items()
    )

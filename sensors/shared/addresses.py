"""The addresses behind a server's: a headless Service of Kubernetes resolves to its ready pods."""

import asyncio
import ipaddress
import socket


async def resolve(address: str) -> tuple[str, ...]:
    """Return `HOST:PORT` of each address that the name has now, sorted; an IP address is its own.

    `address`: also several with ", " between them. Raises OSError if the name does not resolve.
    """
    if ", " in address:
        return tuple(address.split(", "))
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
        hosts = {str(where[0]) for _, _, _, _, where in found}
        return tuple(sorted(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts))
    return (address,)

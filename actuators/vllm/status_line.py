"""Asks a server for a page on a new connection, and reads no more than the status of the answer."""

import asyncio
import ipaddress
import re
import socket
from contextlib import suppress

CONNECT_S = 5.0
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: .*)?\r?\n")
_SHOWN = 80  # bytes of an answer that is not HTTP


async def get_status(address: str, path: str) -> int:
    """Return the status of a GET. Raises OSError, and ValueError for an answer that is not HTTP.

    A probe each second is most of what an idle server costs the daemon, and aiohttp's client takes twice the
    CPU for it.
    """
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await _connect(address)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if found := _STATUS.fullmatch(line):
        return int(found[1])
    raise ValueError(
        f"it answers {line[:_SHOWN]!r}, which is not HTTP" if line else "it closed the connection"
    )


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of the name that accepts. Raises the error of the last one."""
    name, _, port = address.rpartition(":")
    *others, last = await _resolve(name.removeprefix("[").removesuffix("]"), int(port))
    for host in others:
        try:
            return await asyncio.open_connection(host, int(port))
        except OSError:
            continue
    return await asyncio.open_connection(last, int(port))


async def _resolve(name: str, port: int) -> list[str]:
    """The addresses of the name; an IP address is its own, and needs no thread of the resolver."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        return [str(where[0]) for *_, where in found]
    return [name]

"""Asks a server for a page on a new connection, and reads no more than the status of the answer."""

import asyncio
import re
import socket

from flettner.primitives.address import Address
from flettner.primitives.sockets import resolve

CONNECT_S = 5.0
LONGEST = 4096  # bytes of the first line
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: .*)?\r?\n")
_SHOWN = 80  # bytes of an answer that is not HTTP


async def get_status(address: str, path: str) -> int:
    """Return the status of a GET. Raises OSError, and ValueError for an answer that is not HTTP.

    A probe each second is most of what an idle server costs the daemon. asyncio's streams take 1.6 times the
    CPU of a plain socket for it, and aiohttp's client three times.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_S):
        connection = await _connect(address)
    with connection:
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        await loop.sock_sendall(connection, request.encode())
        line = await _read_line(connection)
    if match := _STATUS.fullmatch(line):
        return int(match[1])
    raise ValueError(
        f"it answers {line[:_SHOWN]!r}, which is not HTTP" if line else "it closed the connection"
    )


async def _read_line(connection: socket.socket) -> bytes:
    """Return the first line, even if it is cut by the end of the connection or after LONGEST."""
    loop = asyncio.get_running_loop()
    read = b""
    while b"\n" not in read and len(read) < LONGEST:
        more = await loop.sock_recv(connection, LONGEST)
        if not more:
            break
        read += more
    line, newline, _ = read.partition(b"\n")
    return line + newline


async def _connect(address: str) -> socket.socket:
    """Connect to the first address of the name that accepts. Raises the error of the last one."""
    *others, last = await resolve(Address.parse(address))
    for other in others:
        try:
            return await _connect_to(other)
        except OSError:
            continue
    return await _connect_to(last)


async def _connect_to(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (address.host, address.port))
    except BaseException:
        connection.close()
        raise
    return connection

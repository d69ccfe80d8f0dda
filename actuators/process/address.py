"""The address of a server on this host, from a URL or from its command line."""

import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from flettner.agent.domain.errors import ActError
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_address

_HERE = "127.0.0.1"
_REACHED_HERE = frozenset({"", "0.0.0.0", "::", "localhost"})  # noqa: S104 - read, not bound


def address_of(url: str) -> str:
    """Return host and port of `http://127.0.0.1:8000`. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path.strip("/"):
        raise ValueError(f"serving must look like http://127.0.0.1:8000, not {url!r}")
    return _at(parts.hostname, parts.port)


def find_listen_address(argv: Sequence[str]) -> str:
    """Return the address of a server with this command line; empty if it cannot be read."""
    try:
        host, port = parse_address(argv)
    except FlagError:
        return ""
    return _at(host, port)


def port_of(address: str) -> int:
    """Return 0 if there is no address."""
    return int(address.rpartition(":")[2] or 0)


def find_free_port(ports: tuple[int, int], taken: Collection[int], wanted: int = 0) -> int:
    """Return `wanted` if it is free, else a port of the range `ports`. Raises ActError."""
    first, last = ports
    tries = [(wanted, True)] if wanted else []
    tries += [(port, again) for again in (False, True) for port in range(first, last + 1)]
    for port, again in tries:  # preferably one without old connections
        if port in taken:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, again)
            probe.bind(("", port))
            return port
    raise ActError(f"ports: none of {first}..{last} is free: give a wider range")


def _at(host: str, port: int) -> str:
    host = _HERE if host in _REACHED_HERE else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

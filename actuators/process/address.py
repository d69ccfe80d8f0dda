"""The address of a server on this host, from a URL or from its command line."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from vllm_facts.errors import FlagError
from vllm_facts.flag_parser import parse_address

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


def _at(host: str, port: int) -> str:
    host = _HERE if host in _REACHED_HERE else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

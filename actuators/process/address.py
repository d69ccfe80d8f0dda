"""The address of a server on this host, from a URL or from its command line, and a port for a new one."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from flettner.agent.domain.errors import ActError
from flettner.primitives.address import Address
from flettner.primitives.sockets import find_free_port
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_address


def parse_url(url: str) -> Address:
    """Return the address in `http://127.0.0.1:8000`. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path.strip("/"):
        raise ValueError(f"serving must look like http://127.0.0.1:8000, not {url!r}")
    return Address(parts.hostname, parts.port).reached_here()


def find_listen_address(argv: Sequence[str]) -> Address | None:
    """Return where this host reaches a server with this command line; None if it cannot be read."""
    with suppress(FlagError):
        return parse_address(argv).reached_here()
    return None


def choose_port(ports: tuple[int, int], taken: Collection[int], wanted: int = 0) -> int:
    """Return `wanted` if it is free, else a port of the range `ports`. Raises ActError."""
    first, last = ports
    with suppress(OSError):
        return find_free_port([wanted] if wanted else [], taken=taken)
    try:
        return find_free_port(range(first, last + 1), taken=taken)
    except OSError as error:
        raise ActError(f"ports: none of {first}..{last} is free: give a wider range") from error

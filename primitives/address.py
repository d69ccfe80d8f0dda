"""Where a program listens or is reached: HOST:PORT, or the path of a unix socket."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

UNIX = "unix:"
LONGEST_SOCKET_PATH = 107
"""Bytes that a sockaddr_un holds (unix(7))."""

_HERE = "127.0.0.1"
_LAST_PORT = 65_535


def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address, an IPv4 address in IPv6 as the former; None for a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def is_loopback(host: str) -> bool:
    """Whether only this host is reached there. Names other than `localhost` are not resolved."""
    ip = parse_ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


@dataclass(frozen=True, slots=True)
class Address:
    """`host`: a name or an IP address, without brackets; a listener with none listens on all interfaces.
    `port`: 0 lets the kernel choose one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, name: str = "an address", *, least_port: int = 0) -> Self:
        """Parse `127.0.0.1:8080`, `[::1]:8080` or `host:8080`. Raises ValueError, which calls it `name`."""
        written, _, port = text.rpartition(":")
        bracketed = written.startswith("[") and written.endswith("]")
        host = written[1:-1] if bracketed else written
        if host and (":" in host) == bracketed and _is_number(port) and least_port <= int(port) <= _LAST_PORT:
            return cls(host, int(port))
        raise ValueError(
            f"{name} must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, with a port of {least_port} to "
            f"{_LAST_PORT}, not {text!r:.200}"
        )

    def __str__(self) -> str:
        return f"{self.url_host}:{self.port}"

    @property
    def url_host(self) -> str:
        """The host as in a URL or a Host header: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all interfaces of a listener."""
        ip = parse_ip(self.host)
        return not self.host if ip is None else ip.is_unspecified

    def reached_here(self) -> Self:
        """Where a process of this host reaches a program that listens at this address."""
        here = self.is_wildcard or self.host == "localhost"
        return type(self)(_HERE, self.port) if here else self


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket of this host, which file permissions protect."""

    path: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `unix:/path`. Raises ValueError."""
        path = text.removeprefix(UNIX)
        if not text.startswith(UNIX) or not path.startswith("/") or not path.isprintable():
            raise ValueError(f"must be {UNIX} and an absolute path, not {text!r:.200}")
        if len(path.encode()) > LONGEST_SOCKET_PATH:
            raise ValueError(f"must be a path of at most {LONGEST_SOCKET_PATH} bytes, not {text!r:.200}")
        return cls(Path(path))

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"

    @property
    def is_loopback(self) -> bool:
        return True


Listener = Address | UnixSocket


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(_LAST_PORT))

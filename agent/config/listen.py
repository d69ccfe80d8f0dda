"""Where the API listens, and who comes in without a token."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["viewer", "operator", "admin"]

UNIX = "unix:"
SOCKET = f"{UNIX}/run/trimtab/api.sock"
"""Listened on, and asked by the commands, where nothing else is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What TLS is spoken with. With `client_ca` clients must show a certificate that it has signed."""

    chain: Path
    key: Path
    client_ca: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """`listen`: `unix:/path` or `host:port` each; TCP beyond loopback only with a certificate."""

    listen: tuple[str, ...]
    hosts: tuple[str, ...]  # names, besides those of loopback, by which clients may call it
    tokens_file: Path | None
    certificate: Certificate | None
    users: Mapping[str, Role]  # over the unix socket, by name or number
    groups: Mapping[str, Role]
    certificates: Mapping[str, Role]  # by the name in a client's certificate

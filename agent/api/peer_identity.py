"""Identifies callers without a token.

On a unix socket the kernel reports the peer's account (SO_PEERCRED); with TLS a client certificate signed by
the configured authority names it.
"""

import grp
import os
import pwd
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from flettner.agent.api.tokens import RANKS, Holder
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ConfigError

PEERGROUPS = 59  # SO_PEERGROUPS of <asm-generic/socket.h>: Python does not name it
MOST_GROUPS = 256  # getsockopt reads at most 1024 bytes; of a peer with more only the first group counts
ROOT = 0
NONE: Mapping[str, Role] = MappingProxyType({})
CREDENTIALS = struct.Struct("iII")  # struct ucred of unix(7): pid, uid, gid
NUMBERS_HERE = {"users": Path("/proc/self/uid_map"), "groups": Path("/proc/self/gid_map")}


class PeerIdentities:
    """The roles of users, groups and certificate names.

    Root and the daemon's own user are admins: they can write the tokens file and stop the daemon, so a token
    requirement would protect nothing.
    """

    def __init__(
        self, users: Mapping[str, Role], groups: Mapping[str, Role], certificates: Mapping[str, Role] = NONE
    ) -> None:
        """Raises ConfigError for an account that is unknown on this host or in this process's namespace."""
        self._users: dict[int, Role] = {}
        self._groups: dict[int, Role] = {}
        self._names: dict[int, str] = {}
        self._certificates = certificates
        for written, role in users.items():
            uid = _number("users", written, lambda name: pwd.getpwnam(name).pw_uid)
            self._users[uid] = role
            self._names[uid] = written
        for written, role in groups.items():
            self._groups[_number("groups", written, lambda name: grp.getgrnam(name).gr_gid)] = role
        for uid, name in ((os.geteuid(), "the daemon's own user"), (ROOT, "root")):
            self._users[uid] = "admin"
            self._names[uid] = name

    def holder(self, request: web.Request) -> Holder | None:
        """None if the caller is unauthenticated."""
        if certificate := request.get_extra_info("peercert"):
            return self._certified(names_in(certificate))
        connection = request.get_extra_info("socket")
        if connection is None or connection.family != socket.AF_UNIX:
            return None
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, uid, gid = CREDENTIALS.unpack(raw)
        return self.holder_of(uid, {gid, *_groups_of(connection)})

    def _certified(self, names: Collection[str]) -> Holder | None:
        """The certificate's name with the highest role."""
        granted = [name for name in names if name in self._certificates]
        if not granted:
            return None
        name = max(granted, key=lambda name: RANKS[self._certificates[name]])
        role = self._certificates[name]
        return Holder(id=f"certificate-{name}", role=role, principal=f"certificate {name}")

    def holder_of(self, uid: int, gids: Collection[int]) -> Holder | None:
        """The highest role of the user and the groups."""
        roles = [self._users.get(uid), *(self._groups.get(gid) for gid in gids)]
        granted = [role for role in roles if role is not None]
        if not granted:
            return None
        name = self._names.get(uid)
        principal = f"uid {uid} ({name})" if name else f"uid {uid}"
        return Holder(id=f"uid-{uid}", role=max(granted, key=RANKS.__getitem__), principal=principal[:100])


def names_in(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The alternative names of an `ssl.SSLSocket.getpeercert()` result; without any, the common name
    (RFC 9525: alternative names take precedence)."""
    alternatives = tuple(name for _, name in certificate.get("subjectAltName", ()))
    parts = (part for several in certificate.get("subject", ()) for part in several)
    return alternatives or tuple(value for kind, value in parts if kind == "commonName")


def _groups_of(connection: socket.socket) -> tuple[int, ...]:
    """The peer's supplementary groups at connection time; empty if the kernel does not report them."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, PEERGROUPS, 4 * MOST_GROUPS)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _number(key: str, written: str, look_up: Callable[[str], int]) -> int:
    """Raises ConfigError for an account that this user namespace does not map."""
    number = _written(key, written, look_up)
    numbers_here = NUMBERS_HERE[key]
    if numbers_here.exists() and not is_mapped(number, numbers_here.read_text()):
        raise ConfigError(
            f"[api] {key}: {written} is not mapped in the user namespace of this process:"
            " set PrivateUsers=no in the unit (docs/install.md), or issue a token instead"
        )
    return number


def is_mapped(number: int, id_map: str) -> bool:
    """Whether a user namespace maps the id; a line of its map: first inside, first outside, count
    (user_namespaces(7))."""
    lines = [[int(word) for word in line.split()] for line in id_map.splitlines()]
    return any(first <= number < first + count for first, _, count in lines)


def _written(key: str, written: str, look_up: Callable[[str], int]) -> int:
    if written.isdecimal():
        number = int(written[:11])
        if number >= 2**32 - 1:
            raise ConfigError(f"[api] {key}: {written} is not a valid account number")
        return number
    try:
        return look_up(written)
    except KeyError:
        raise ConfigError(
            f"[api] {key}: this host has no {key.removesuffix('s')} {written}; create it, or write its number"
        ) from None

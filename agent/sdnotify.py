"""Tell systemd how the daemon is. Outside systemd (no $NOTIFY_SOCKET) every call does nothing."""

import os
import socket
import time
from collections.abc import Mapping


def notify(message: str, environ: Mapping[str, str] = os.environ) -> None:
    """Say `READY=1`, `STATUS=text`, `STOPPING=1` or `WATCHDOG=1`; several lines are one message.

    Feed the watchdog from the loop's own progress, never from a task that lives on when the loop hangs.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # the abstract namespace
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagram:
        try:
            datagram.connect(address)
            datagram.send(message.encode(), socket.MSG_DONTWAIT)
        except OSError:
            return  # systemd is gone or its queue is full: the next message says as much


def reloading(environ: Mapping[str, str] = os.environ) -> None:
    """To be followed by `READY=1`. systemd wants the time at which the reload began, in microseconds."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", environ)


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds after which systemd kills a silent daemon (feed it twice as often); None: it does not watch."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    meant = pid in ("", str(os.getpid()))
    return int(usec) / 1e6 if usec.isdecimal() and int(usec) > 0 and meant else None

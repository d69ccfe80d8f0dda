"""Notifications to systemd (sd_notify(3)): ready, status, reloading, stopping, watchdog.

Without $NOTIFY_SOCKET, as outside systemd, every call does nothing.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemdNotifier:
    """`address` as in $NOTIFY_SOCKET: a path, or `@name` in the abstract namespace."""

    address: str = ""

    def ready(self, status: str = "") -> None:
        self._send("READY=1", *_status(status))

    def status(self, status: str) -> None:
        self._send(*_status(status))

    def reloading(self) -> None:
        """Call `ready` afterwards. systemd expects the start of the reload, in microseconds."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", *_status(status))

    def watchdog(self) -> None:
        """Call this from the loop's own progress, never from a task that survives a hanging loop."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self.address or not lines:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagram:
            try:
                datagram.connect(address)
                datagram.send("\n".join(lines).encode(), socket.MSG_DONTWAIT)
            except OSError:
                return  # systemd restarts, or its queue is full: the next ping repeats the message


def find_notifier(environ: Mapping[str, str] = os.environ) -> SystemdNotifier:
    return SystemdNotifier(environ.get("NOTIFY_SOCKET", ""))


def read_watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds without a ping after which systemd kills the daemon; None if its watchdog is off."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    is_ours = pid in ("", str(os.getpid()))
    return int(usec) / 1e6 if usec.isdecimal() and int(usec) > 0 and is_ours else None


def _status(text: str) -> tuple[str, ...]:
    return (f"STATUS={' '.join(text.split())}",) if text else ()

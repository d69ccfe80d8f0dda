"""Log records as journald takes them: each key a field of its own, the level as a priority.

`journalctl -u trimtab TRIMTAB_ROLLOUT=chat-o3`, `journalctl -u trimtab -p warning`.
https://systemd.io/JOURNAL_NATIVE_PROTOCOL/: a datagram of fields, each as in the Journal Export Format.
"""

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from typing import Any, TextIO

SOCKET = "/run/systemd/journal/socket"
PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
APART = {"event", "level", "logger", "timestamp"}  # keys that have their own place
FIRST = {"target", "rollout"}
_ODD = re.compile(r"[^A-Z0-9_]")
_LONGEST_NAME = 64


def reads(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written to the stream goes to journald: systemd says which file that is."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def field(name: str, value: str) -> bytes:
    """`NAME=value` and a newline; with newlines in it: the name alone, the length in 8 bytes, the value."""
    data = value.encode("utf-8", "replace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def datagram(said: Mapping[str, Any]) -> bytes:
    """Of one line of the log."""
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in said.items()}
    rest = [
        f"{key}={told[key]}" for key in sorted(told, key=lambda key: key not in FIRST) if key not in APART
    ]
    own = {f"TRIMTAB_{_ODD.sub('_', key.upper())}": value for key, value in told.items() if key not in APART}
    fields = {
        "MESSAGE": " ".join((told["event"], *rest)),
        "PRIORITY": str(PRIORITIES.get(told.get("level", ""), PRIORITIES["info"])),
        "SYSLOG_IDENTIFIER": "trimtab",
        "TRIMTAB_LOGGER": told.get("logger", ""),
        **{name[:_LONGEST_NAME]: value for name, value in own.items()},
    }
    return b"".join(field(name, value) for name, value in fields.items())


class JournaldHandler(logging.StreamHandler[TextIO]):
    """Its formatter makes a line of JSON. What journald does not take goes to the stream, as that line."""

    def __init__(self, stream: TextIO, address: str = SOCKET) -> None:
        super().__init__(stream)
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a journald that hangs holds up nobody

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(datagram(json.loads(self.format(record))), self._address)
        except OSError:
            super().emit(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

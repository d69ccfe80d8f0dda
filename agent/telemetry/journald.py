"""systemd's journal formats: log lines as native-protocol datagrams, audit entries in the export format.

Each key becomes a field of its own and the level a priority: `journalctl -u flettner
FLETTNER_ROLLOUT=chat-3`, `journalctl -u flettner -p warning`. Both formats encode a field in the same way:
https://systemd.io/JOURNAL_NATIVE_PROTOCOL/, https://systemd.io/JOURNAL_EXPORT_FORMATS/.
"""

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

import rfc8785

SOCKET = "/run/systemd/journal/socket"
PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
NOTICE = 5
_RESERVED = {"event", "level", "logger", "timestamp"}  # keys that map to journald's own fields
_FIRST = {"target", "rollout"}
_INVALID = re.compile(r"[^A-Z0-9_]")
_LONGEST_NAME = 64


def is_journald(stream: TextIO) -> bool:
    """Whether the stream is connected to journald, as $JOURNAL_STREAM states (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def encode_field(name: str, value: str) -> bytes:
    """Encode as `NAME=value`; a value with newlines as the name, its length in 8 bytes, and the value."""
    data = value.encode("utf-8", "replace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def encode_log(line: Mapping[str, Any]) -> bytes:
    """Encode a structured log line as one datagram of the native protocol."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in line.items()}
    keys = sorted((key for key in texts if key not in _RESERVED), key=lambda key: key not in _FIRST)
    fields = {
        "MESSAGE": " ".join((texts["event"], *(f"{key}={texts[key]}" for key in keys))),
        "PRIORITY": str(PRIORITIES.get(texts.get("level", ""), PRIORITIES["info"])),
        "SYSLOG_IDENTIFIER": "flettner",
        "FLETTNER_LOGGER": texts.get("logger", ""),
        **{f"FLETTNER_{_INVALID.sub('_', key.upper())}"[:_LONGEST_NAME]: texts[key] for key in keys},
    }
    return b"".join(encode_field(name, value) for name, value in fields.items())


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Encode a record of the audit journal in the export format, for `systemd-journal-remote`."""
    message = [record["target"], record["action"], record["why"], record["error"]]
    fields = {
        "__REALTIME_TIMESTAMP": str(round(datetime.fromisoformat(record["ts"]).timestamp() * 1e6)),
        "_BOOT_ID": record["boot_id"].replace("-", ""),
        "_HOSTNAME": record["host"],
        "SYSLOG_IDENTIFIER": "flettner",
        "PRIORITY": str(PRIORITIES["error"] if record["error"] else NOTICE),
        "MESSAGE": " ".join(filter(None, message)),
        "FLETTNER_AUDIT_SEQ": str(record["seq"]),
        "FLETTNER_AUDIT_HEAD": record["hash"],
        "FLETTNER_ACTION": record["action"],
        "FLETTNER_TARGET": record["target"],
        "FLETTNER_ROLLOUT": record["op_id"],
        "FLETTNER_ACTOR": str(record["actor"].get("id") or ""),
        "FLETTNER_RECORD": rfc8785.dumps(dict(record)).decode(),
    }
    return b"".join(encode_field(name, value) for name, value in fields.items() if value) + b"\n"


class JournaldHandler(logging.StreamHandler[TextIO]):
    """Sends records, formatted as JSON lines, to journald; to the stream if journald refuses one."""

    def __init__(self, stream: TextIO, address: str = SOCKET) -> None:
        super().__init__(stream)
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a journald that hangs must not block the daemon

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(encode_log(json.loads(self.format(record))), self._address)
        except OSError:
            super().emit(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

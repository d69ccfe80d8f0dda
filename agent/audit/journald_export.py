"""An entry in systemd's Journal Export Format, which `systemd-journal-remote` takes in.

https://systemd.io/JOURNAL_EXPORT_FORMATS/: `NAME=value` lines, one empty line after each entry; a value with
a newline is the name alone, its length in 8 bytes, and the bytes.
"""

from datetime import datetime
from typing import Any

import rfc8785

from agent.audit.records import JournalRecord
from agent.telemetry.journald import field

_ERROR, _NOTICE = 3, 5  # syslog priorities


def exported(record: JournalRecord) -> bytes:
    at = datetime.fromisoformat(record["ts"])
    whole: Any = record
    told = [record["target"], record["action"], record["why"], record["error"]]
    fields = {
        "__REALTIME_TIMESTAMP": str(round(at.timestamp() * 1e6)),
        "_BOOT_ID": record["boot_id"].replace("-", ""),
        "_HOSTNAME": record["host"],
        "SYSLOG_IDENTIFIER": "trimtab",
        "PRIORITY": str(_ERROR if record["error"] else _NOTICE),
        "MESSAGE": " ".join(filter(None, told)),
        "TRIMTAB_AUDIT_SEQ": str(record["seq"]),
        "TRIMTAB_AUDIT_HEAD": record["hash"],
        "TRIMTAB_ACTION": record["action"],
        "TRIMTAB_TARGET": record["target"],
        "TRIMTAB_ROLLOUT": record["op_id"],
        "TRIMTAB_ACTOR": str(record["actor"].get("id") or ""),
        "TRIMTAB_RECORD": rfc8785.dumps(whole).decode(),
    }
    return b"".join(field(name, value) for name, value in fields.items() if value) + b"\n"

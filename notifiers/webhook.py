"""Any HTTP service of your own: JSON, signed, so that it can tell our posts from others'."""

import hashlib
import hmac
import json
import socket
from dataclasses import asdict, dataclass
from datetime import datetime

from agent.notify.rules import Notice, OutgoingNotice
from notifiers.shared.secret_files import Addressed, secret

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(Addressed):
    secret_file: str  # the key that posts are signed with

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        told = {
            "version": VERSION,
            "host": socket.gethostname(),
            **asdict(notice),
            "severity": notice.severity,
            "at": notice.at.isoformat(),
        }
        body = json.dumps(told, ensure_ascii=False).encode()
        stamp = str(int(at.timestamp()))
        return OutgoingNotice(
            url=self.address(),
            body=body,
            headers={
                "Trimtab-Id": notice.id,
                "Trimtab-Timestamp": stamp,
                "Trimtab-Signature": f"v1={signature(secret(self.secret_file), stamp, body)}",
            },
        )


def signature(key: str, stamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp, a full stop and the body, in hex: as Stripe signs."""
    return hmac.new(key.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


plugin = Webhook

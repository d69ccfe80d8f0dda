"""Any HTTP service: JSON with a signature, so that the receiver can authenticate the request."""

import hashlib
import hmac
import json
import socket
from dataclasses import asdict, dataclass
from datetime import datetime

from flettner.agent.notify.rules import Notice, OutgoingNotice
from flettner.notifiers.shared.secret_files import UrlReceiver, read_secret

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(UrlReceiver):
    secret_file: str  # the signing key

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        message = {
            "version": VERSION,
            "host": socket.gethostname(),
            **{name: value for name, value in asdict(notice).items() if name != "decisions"},
            "severity": notice.severity,
            "at": notice.at.isoformat(),
        }
        body = json.dumps(message, ensure_ascii=False).encode()
        stamp = str(int(at.timestamp()))
        return OutgoingNotice(
            url=self.read_url(),
            body=body,
            headers={
                "Flettner-Id": notice.id,
                "Flettner-Timestamp": stamp,
                "Flettner-Signature": f"v1={sign(read_secret(self.secret_file), stamp, body)}",
            },
        )


def sign(key: str, stamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 over the timestamp, a full stop and the body, in hex, as Stripe does."""
    return hmac.new(key.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


plugin = Webhook

"""Pushes the journal's head out on a schedule, so that a cut or rewritten end is found elsewhere."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from flettner.agent.audit.anchors import LOG, SYSLOG, AnchorOptions, anchor_text
from flettner.agent.audit.chain import Head

SYSLOG_SOCKET = "/dev/log"
NOTICE = 3 * 8 + 5  # facility daemon, severity notice
log = structlog.get_logger()


def send_syslog(text: str, address: str = SYSLOG_SOCKET) -> None:
    """Send one line to the syslog of this host (RFC 3164).

    Raises OSError, also instead of waiting for a full socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        out.sendto(f"<{NOTICE}>flettner: {text}".encode(), address)


@dataclass(slots=True, kw_only=True)
class AnchorSchedule:
    """`latest`: the anchor that receivers of notices send on (flettner.agent.notify.delivery)."""

    head: Callable[[], Head]
    options: AnchorOptions = field(default_factory=AnchorOptions)
    syslog: Callable[[str], None] = send_syslog  # raises OSError
    latest: Head = field(default_factory=Head)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.push()
            await asyncio.sleep(self.options.every_s)

    def push(self) -> None:
        """Push the head out, unless that was done. A failure is logged and ends nothing."""
        head = self.head()
        if head == self.latest:
            return
        self.latest = head
        if LOG in self.options.to:
            log.info("audit.anchor", **head.log_fields())
        if SYSLOG in self.options.to:
            try:
                self.syslog(anchor_text(head))
            except OSError as error:
                log.warning("audit.anchor_failed", to=SYSLOG, why=str(error))

    def for_receiver(self, name: str) -> Head | None:
        """Return the anchor that this receiver of notices gets; None if it gets none."""
        return self.latest if name in self.options.to and self.latest.seq else None

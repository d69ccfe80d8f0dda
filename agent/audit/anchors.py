"""Anchors: heads of the journal, pushed to where a writer of the state directory cannot change them.

An anchor is a pin (`chain.verify`) that the daemon makes by itself. Any line with a head is one: of
the daemon's log (journald, or a file), of syslog, of a notice.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from flettner.agent.audit.chain import Head

LOG, SYSLOG = "log", "syslog"

_NUMBER, _HASH = r"([1-9][0-9]{0,14})(?![0-9])", r"([0-9a-f]{64})(?![0-9a-f])"
_PIN = re.compile(rf"(?<![0-9A-Za-z]){_NUMBER}:{_HASH}")
_SEQ = re.compile(
    rf"(?i:audit_seq)[\"=: ]{{1,5}}{_NUMBER}"
)  # "audit_seq": 7, "FLETTNER_AUDIT_SEQ":"7", audit_seq=7
_HEAD = re.compile(rf"(?i:audit_head)[\"=: ]{{1,5}}{_HASH}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorOptions:
    """`to`: `log`, `syslog`, or the name of a receiver of notices."""

    every_s: float = 600.0
    to: tuple[str, ...] = (LOG,)


def anchor_text(head: Head) -> str:
    return f"audit anchor {head.seq}:{head.hash}"


def find_anchors(lines: Iterable[str]) -> set[Head]:
    """Find the anchors in lines of any log; at most one a line."""
    heads = set()
    for line in lines:
        seq, head, pin = _SEQ.search(line), _HEAD.search(line), _PIN.search(line)
        if seq and head:
            heads.add(Head(seq=int(seq[1]), hash=head[1]))
        elif pin:
            heads.add(Head(seq=int(pin[1]), hash=pin[2]))
    return heads

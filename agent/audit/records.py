"""The line format of the journal, and its hash chain.

A line is canonical JSON (RFC 8785). `hash` is the SHA-256 of the line without the `hash` member, and `prev`
is the hash of the line before. The chain can be verified in any language and detects a change of any byte.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

import rfc8785
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

from flettner.agent.audit.migration import migrate_state
from flettner.agent.domain.effects import Effect
from flettner.agent.domain.model import Evidence
from flettner.agent.domain.state import State
from flettner.redaction import masked

VERSION = 2
FLAT_STATE = 1  # the version before, whose states are migrated
READABLE = (FLAT_STATE, VERSION)
GENESIS = "0" * 64
"""`prev` of the first entry."""
LONGEST_LINE = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The actor of an entry: a person's token, a policy, the `auto` mode, or the daemon itself."""

    kind: Literal["person", "policy", "auto", "daemon"]
    id: str
    role: str | None = None


DAEMON = Actor(kind="daemon", id="flettner")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An entry to write. `action`: a noun and its event, as "suggestion.approved"."""

    at: datetime
    actor: Actor
    action: str
    target: str = ""
    op_id: str = ""  # id of the rollout
    why: str = ""
    evidence: tuple[Evidence, ...] = ()
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    risk: str = ""
    result: str = ""
    error: str = ""
    epoch: int = 0
    effects: tuple[Effect, ...] = ()
    state: State | None = None  # the resulting full state of `target`


@with_config(ConfigDict(strict=True, extra="ignore"))
class JournalRecord(TypedDict):
    """One line of the journal, as JSON."""

    v: int
    seq: int  # from 1, without gaps
    ts: str
    actor: dict[str, str | None]
    action: str
    target: str
    op_id: str
    why: str
    evidence: list[dict[str, Any]]
    before: dict[str, Any]
    after: dict[str, Any]
    risk: str
    result: str
    error: str
    epoch: int
    boot_id: str
    host: str
    effects: list[dict[str, Any]]
    state: dict[str, Any] | None
    prev: str
    hash: str


FIELDS = sorted(JournalRecord.__annotations__)
"""The members of a line, in order."""


class BrokenLineError(ValueError):
    """A line differs from what was written; the message states how."""


def encode_line(entry: JournalEntry, *, seq: int, prev: str, boot_id: str, host: str) -> bytes:
    """Encode `entry` as a line with its newline: secrets masked, chained to `prev`.

    Raises rfc8785.CanonicalizationError, and BrokenLineError for a state that cannot be parsed again.
    """
    body: dict[str, Any] = masked(entry)
    del body["at"]
    body["v"] = VERSION
    body["seq"] = seq
    body["ts"] = entry.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body["boot_id"], body["host"] = boot_id, host
    body["prev"] = prev
    members = {name: rfc8785.dumps(name) + b":" + rfc8785.dumps(value) for name, value in body.items()}
    members["hash"] = b'"hash":"%s"' % hashlib.sha256(_object(members)).hexdigest().encode()
    line = _object(members)
    parse_state(parse_record(line))
    return line + b"\n"


def _object(members: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(members[name] for name in sorted(members)) + b"}"


def parse_record(line: bytes) -> JournalRecord:
    """Parse a line without verifying its chain. Raises BrokenLineError."""
    try:
        return _RECORD().validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise BrokenLineError(f"it is not an entry: {where}{first['msg']}") from error


def parse_state(record: JournalRecord) -> State | None:
    """Parse the state that the record holds. Raises BrokenLineError if this version cannot read it."""
    state = record["state"]
    if state is None:
        return None
    try:
        return _STATE().validate_python(migrate_state(state) if record["v"] == FLAT_STATE else state)
    except (ValidationError, KeyError) as error:
        raise BrokenLineError(f"its state cannot be read by this flettner: {error}") from error


_RECORD = cache(lambda: TypeAdapter(JournalRecord))  # built on first use: it takes tens of milliseconds
_STATE = cache(lambda: TypeAdapter(State))

"""Verification of a journal: detects any edit, cut, swap or insertion of entries."""

import codecs
import hashlib
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from flettner.agent.audit import checkpoints
from flettner.agent.audit.records import (
    FIELDS,
    GENESIS,
    LONGEST_LINE,
    READABLE,
    BrokenLineError,
    JournalRecord,
    parse_record,
)
from flettner.agent.audit.segments import open_files
from flettner.agent.domain.errors import JournalError

REMOVED = "audit.removed"
_SECTOR = 512  # bytes: the unit that a disk writes in full or not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry of a journal. Pinned elsewhere (a log, a metric), it reveals a cut-off end."""

    seq: int = 0
    hash: str = GENESIS

    def log_fields(self) -> dict[str, int | str]:
        """Return the head as fields of a log line, which is a pin outside the journal."""
        return {"audit_seq": self.seq, "audit_head": self.hash}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of verifying a full journal."""

    entries: int  # valid entries, from the first kept one up to the first bad one
    ok: bool
    head: Head  # the last valid entry
    first: int = 1  # earlier entries were removed by retention, which an entry records
    first_bad: int | None = None  # seq of the first changed entry
    where: str = ""  # "audit.jsonl, line 7"
    problem: str = ""
    torn_tail: int = 0  # bytes of a last line that a crash left unfinished; this is no tampering
    checkpoints: int = 0
    signed: int = 0  # the last checkpoint with a verified signature; 0: no key was given
    pinned: int = 0  # the last entry that a pin or an anchor confirms


def verify(
    path: Path,
    *,
    pins: Collection[Head] = (),
    anchors: Collection[Head] = (),
    keys: Mapping[str, Any] | None = None,
    on_record: Callable[[JournalRecord], None] = lambda _: None,
) -> Verification:
    """Verify a full journal. Writes nothing.

    `pins`: heads noted earlier, without which a cut-off end is not detected. `anchors`: the same, where those
    of entries that retention removed do not matter if later ones follow. `keys`: public keys by id
    (checkpoints.load_public_keys), without which an edit is not detected if all later entries were chained
    again. Raises JournalError if a file cannot be read, or a pin is older than the first kept entry.
    """
    verifier = _Verifier(keys=keys or {}, pins=set(pins) | set(anchors), anchors=frozenset(anchors))
    where, rest = path.name, b""
    try:
        for name, file, last in open_files(path):
            line, size = 1, 0
            where = f"{name}, line {line}"
            for record, length in read_chain(file, verifier.head, last=last):
                verifier.add(record)
                on_record(record)
                line, size = line + 1, size + length
                where = f"{name}, line {line}"
            _require_entries(size, alone=last and verifier.head is None)
            file.seek(size)
            rest = file.read(LONGEST_LINE)
    except BrokenLineError as error:
        return verifier.result(first_bad=verifier.seq + 1, where=where, problem=str(error))
    except OSError as error:
        raise JournalError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error
    first_bad, problem = verifier.find_missing()
    return verifier.result(
        first_bad=first_bad, where=where if first_bad else "", problem=problem, torn=len(rest)
    )


def _require_entries(size: int, *, alone: bool) -> None:
    """Raise BrokenLineError for a file without entries, as a start does; the only file may have none."""
    if not (size or alone):
        raise BrokenLineError("the file is empty")


@dataclass(slots=True, kw_only=True)
class _Verifier:
    """State of a verification over all entries, each of which is chained to the one before."""

    keys: Mapping[str, Any]
    pins: set[Head]
    anchors: frozenset[Head] = frozenset()
    head: Head | None = None  # None: nothing read yet
    start: Head = field(default_factory=Head)  # the entry before the first one
    removed: set[Head] = field(default_factory=set)
    checkpoints: int = 0
    signed: int = 0
    pinned: int = 0

    @property
    def seq(self) -> int:
        return self.head.seq if self.head else 0

    def add(self, record: JournalRecord) -> None:
        """Check the next record. Raises BrokenLineError; the record is then not counted as valid."""
        if self.head is None:
            self.start = head_before(record)
        if record["action"] == checkpoints.ACTION:
            if problem := checkpoints.find_problem(record, self.keys):
                raise BrokenLineError(problem)
            self.checkpoints += 1
            self.signed = record["seq"] if self.keys else 0
        elif self.signed and record["seq"] > self.signed + checkpoints.MAX_UNSIGNED:
            raise BrokenLineError(f"no checkpoint between {self.signed} and it: they were removed")
        self.removed |= removed_heads(record)
        self.head = Head(seq=record["seq"], hash=record["hash"])
        if self.head in self.pins:
            self.pins.discard(self.head)
            self.pinned = self.seq

    def find_missing(self) -> tuple[int | None, str]:
        """Find missing entries after all present ones were found valid: (first bad entry, problem)."""
        if self.start.seq and self.start not in self.removed:
            first = self.start.seq + 1
            return (
                1,
                f"entries before it are missing: {first} is the first, and no entry records their removal",
            )
        unsigned = self.seq - self.start.seq > checkpoints.MAX_UNSIGNED and not self.signed
        if self.keys and unsigned:
            return self.start.seq + 1, "no checkpoint is signed with the key: they were removed"
        for pin in sorted(self.pins - {self.start, Head()}, key=lambda pin: pin.seq):
            if pin.seq < self.start.seq:
                if pin in self.anchors and self.pinned:
                    continue
                raise JournalError(f"entry {pin.seq} was removed by retention: give a later pin")
            problem = f"entry {pin.seq} is not the one with hash {pin.hash}: the end was cut off or rewritten"
            return min(pin.seq, self.seq + 1), problem
        return None, ""

    def result(self, *, first_bad: int | None, where: str, problem: str, torn: int = 0) -> Verification:
        good = self.seq if first_bad is None else min(self.seq, first_bad - 1)
        return Verification(
            entries=max(good - self.start.seq, 0),
            ok=first_bad is None,
            head=self.head or Head(),
            first=self.start.seq + 1,
            first_bad=first_bad,
            where=where,
            problem=problem,
            torn_tail=torn if first_bad is None else 0,
            checkpoints=self.checkpoints,
            signed=self.signed,
            pinned=self.pinned,
        )


def head_before(record: JournalRecord) -> Head:
    """Return the head that the record continues."""
    return Head(seq=record["seq"] - 1, hash=record["prev"])


def removed_heads(record: JournalRecord) -> set[Head]:
    """Return the last entries of the files whose removal the record announces; a prefix may be removed."""
    if record["action"] != REMOVED:
        return set()
    try:
        return {Head(seq=cut["last"], hash=cut["hash"]) for cut in record["after"]["cuts"]}
    except (KeyError, TypeError) as error:
        raise BrokenLineError("it does not state what was removed") from error


def read_chain(
    file: io.BufferedReader, head: Head | None, *, last: bool = True
) -> Iterator[tuple[JournalRecord, int]]:
    """Read every complete entry of one file, with the length of its line in bytes.

    `head`: the entry before the file; None to accept the one that the first entry names. Ends before a line
    that a crash left unfinished, if this is the `last` file. Raises BrokenLineError at the first bad entry.
    """
    size = 0
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise BrokenLineError("it is longer than any entry")
        if not line.endswith(b"\n") or (b"\0" in line and not file.peek(1)):
            if last and is_torn(line, size):
                return
            raise BrokenLineError("it is not an entry, nor a line that a crash leaves")
        record = read_record(line[:-1], head)
        head = Head(seq=record["seq"], hash=record["hash"])
        size += len(line)
        yield record, len(line)


def is_torn(line: bytes, start: int) -> bool:
    """Whether a crash can have left this end of a file: the beginning of a line, or unwritten sectors.

    An interrupted write leaves the beginning of the line. After a power failure full sectors of it may be
    zeros. `start`: offset of the line in the file, bytes.
    """
    zeros = list(re.finditer(rb"\0+", line))
    if zeros:
        return all(
            (run.start() == 0 or (start + run.start()) % _SECTOR == 0)
            and (run.end() == len(line) or (start + run.end()) % _SECTOR == 0)
            for run in zeros
        )
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(line)  # the last character may be cut, too
        begun = from_json(text, allow_partial=True)
    except ValueError:
        return False
    if not isinstance(begun, dict) or [*begun] != FIELDS[: len(begun)]:
        return False
    return len(begun) < len(FIELDS) or _is_record(line) or _is_record(line + b"}")


def _is_record(line: bytes) -> bool:
    try:
        read_record(line, None)
    except BrokenLineError:
        return False
    return True


def read_record(line: bytes, head: Head | None) -> JournalRecord:
    """Parse a line (without its newline) and verify that it continues `head`; None: any head.

    Raises BrokenLineError.
    """
    record = parse_record(line)
    unhashed = line.replace(b'"hash":"%s",' % record["hash"].encode(), b"", 1)
    if hashlib.sha256(unhashed).hexdigest() != record["hash"]:
        raise BrokenLineError("its content does not match its hash: it was edited")
    if record["v"] not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise BrokenLineError(f"it has version {record['v']}, this flettner reads {readable}")
    if head is None:
        head = head_before(record) if record["seq"] > 1 else Head()
    if record["seq"] > head.seq + 1:
        raise BrokenLineError(f"it is entry {record['seq']}: entries before it are missing or were moved")
    if record["seq"] <= head.seq:
        raise BrokenLineError(f"it is entry {record['seq']} again: it was duplicated, moved or inserted")
    if record["prev"] != head.hash:
        raise BrokenLineError("its `prev` is not the hash of the entry before it")
    return record

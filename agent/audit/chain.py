"""Reading a journal and saying whether it is as it was written: no edit, cut, swap or insertion."""

import codecs
import hashlib
import io
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from agent.audit import checkpoints
from agent.audit.records import FIELDS, GENESIS, LONGEST_LINE, VERSION, BrokenLineError, JournalRecord, parse
from agent.audit.segments import reading
from agent.domain.errors import JournalError

REMOVED = "audit.removed"
_SECTOR = 512  # bytes: what a disk writes or does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry. Noted elsewhere (a log, a metric), it shows later that the end was cut off."""

    seq: int = 0
    hash: str = GENESIS

    def told(self) -> dict[str, int | str]:
        """As the fields of a log line: the pin outside."""
        return {"audit_seq": self.seq, "audit_head": self.hash}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What reading a whole journal found."""

    entries: int  # good ones, from the first that is kept up to the first bad one
    ok: bool
    head: Head  # the last good one
    first: int = 1  # what stood before it was removed when its time was over, and an entry says so
    first_bad: int | None = None  # number of the first entry that is not as it was written
    where: str = ""  # "audit.jsonl, line 7"
    problem: str = ""
    torn_tail: int = 0  # bytes of a last line that a crash left unfinished; not counted as tampering
    checkpoints: int = 0
    signed: int = 0  # the last entry that a checked signature stands for; 0: no key was given


def verify(path: Path, *, pins: Collection[Head] = (), keys: Mapping[str, Any] | None = None) -> Verification:
    """Read a whole journal and say whether it is as it was written. Writes nothing.

    `pins`: heads noted earlier; without one nobody can tell that the end was cut off. `keys`: public keys by
    id (checkpoints.trusted); without them nobody can tell that an edit was chained anew up to the end. Raises
    JournalError when a file cannot be read at all, or a pin is older than what is kept.
    """
    walk = _Walk(keys=keys or {}, pins=set(pins))
    where, rest = path.name, b""
    try:
        for name, file, last in reading(path):
            line, size = 1, 0
            where = f"{name}, line {line}"
            for record, length in chain(file, walk.head, last=last):
                walk.take(record)
                line, size = line + 1, size + length
                where = f"{name}, line {line}"
            file.seek(size)
            rest = file.read(LONGEST_LINE)
    except BrokenLineError as error:
        return walk.found(first_bad=walk.seq + 1, where=where, problem=str(error))
    except OSError as error:
        raise JournalError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error
    first_bad, problem = walk.missing()
    return walk.found(first_bad=first_bad, where=where if first_bad else "", problem=problem, torn=len(rest))


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Along all entries, each of which has been chained to the one before."""

    keys: Mapping[str, Any]
    pins: set[Head]
    head: Head | None = None  # None: nothing was read yet
    start: Head = field(default_factory=Head)  # what the first entry says of the one before it
    cuts: set[Head] = field(default_factory=set)
    checkpoints: int = 0
    signed: int = 0

    @property
    def seq(self) -> int:
        return self.head.seq if self.head else 0

    def take(self, record: JournalRecord) -> None:
        """Raises BrokenLineError; then the record is not among the good ones."""
        if self.head is None:
            self.start = before(record)
        if record["action"] == checkpoints.ACTION:
            if problem := checkpoints.problem_of(record, self.keys):
                raise BrokenLineError(problem)
            self.checkpoints += 1
            self.signed = record["seq"] if self.keys else 0
        elif self.signed and record["seq"] > self.signed + checkpoints.MOST_UNSIGNED:
            raise BrokenLineError(f"no checkpoint stands between {self.signed} and it: they were taken away")
        self.cuts |= cuts_in(record)
        self.head = Head(seq=record["seq"], hash=record["hash"])
        self.pins.discard(self.head)

    def missing(self) -> tuple[int | None, str]:
        """What should have been there, after all that is there was found good."""
        if self.start.seq and self.start not in self.cuts:
            first = self.start.seq + 1
            return 1, f"entries before it are missing: {first} is the first, and none says they were removed"
        unsigned = self.seq - self.start.seq > checkpoints.MOST_UNSIGNED and not self.signed
        if self.keys and unsigned:
            return self.start.seq + 1, "no checkpoint is signed with the key: they were taken away"
        for pin in sorted(self.pins - {self.start, Head()}, key=lambda pin: pin.seq):
            if pin.seq < self.start.seq:
                raise JournalError(f"entry {pin.seq} was removed when its time was over: give a later pin")
            problem = (
                f"entry {pin.seq} is not the one with hash {pin.hash}: the end was cut off or written anew"
            )
            return min(pin.seq, self.seq + 1), problem
        return None, ""

    def found(self, *, first_bad: int | None, where: str, problem: str, torn: int = 0) -> Verification:
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
        )


def before(record: JournalRecord) -> Head:
    """What the first entry that is kept says of the one before it."""
    return Head(seq=record["seq"] - 1, hash=record["prev"])


def cuts_in(record: JournalRecord) -> set[Head]:
    """The last entries of the files whose removal the record announces; any prefix of them may be gone."""
    if record["action"] != REMOVED:
        return set()
    try:
        return {Head(seq=cut["last"], hash=cut["hash"]) for cut in record["after"]["cuts"]}
    except (KeyError, TypeError) as error:
        raise BrokenLineError("it does not say what was removed") from error


def chain(
    file: io.BufferedReader, head: Head | None, *, last: bool = True
) -> Iterator[tuple[JournalRecord, int]]:
    """Every finished entry of one file, which goes on after `head`, with the bytes of its line.

    `head`: None to take the first entry's word for what stood before it. Ends before a line that a crash
    left unfinished, if it is the `last` file. Raises BrokenLineError at the first that is not as written.
    """
    size = 0
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise BrokenLineError("it is longer than any entry")
        if not line.endswith(b"\n") or (b"\0" in line and not file.peek(1)):
            if last and unfinished(line, size):
                return
            raise BrokenLineError("it is not an entry, and no crash leaves a line like this")
        record = read(line[:-1], head)
        head = Head(seq=record["seq"], hash=record["hash"])
        size += len(line)
        yield record, len(line)


def unfinished(line: bytes, start: int) -> bool:
    """Whether a crash can have left this as the end of a file: the beginning of a line, or unwritten sectors.

    A write that was cut short leaves the beginning of what was to be written. After a power failure whole
    sectors of it may be zeros; `start`: where the line starts in the file, bytes.
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
    return len(begun) < len(FIELDS) or _whole(line) or _whole(line + b"}")


def _whole(line: bytes) -> bool:
    try:
        read(line, None)
    except BrokenLineError:
        return False
    return True


def read(line: bytes, head: Head | None) -> JournalRecord:
    """The record of a line (without its newline) that must have been written after `head`; None: after any.

    Raises BrokenLineError.
    """
    record = parse(line)
    unhashed = line.replace(b'"hash":"%s",' % record["hash"].encode(), b"", 1)
    if hashlib.sha256(unhashed).hexdigest() != record["hash"]:
        raise BrokenLineError("its content is not what its hash was made of: it was edited")
    if record["v"] != VERSION:
        raise BrokenLineError(f"it is of version {record['v']}, this trimtab reads version {VERSION}")
    if head is None:
        head = before(record) if record["seq"] > 1 else Head()
    if record["seq"] > head.seq + 1:
        raise BrokenLineError(f"it is entry {record['seq']}: entries before it are missing or were moved")
    if record["seq"] <= head.seq:
        raise BrokenLineError(f"it is entry {record['seq']} again: it was duplicated, moved or inserted")
    if record["prev"] != head.hash:
        raise BrokenLineError("it was written after another entry than the one that stands before it")
    return record

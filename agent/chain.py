"""Reading a journal and saying whether it is as it was written: no edit, cut, swap or insertion."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.errors import JournalError
from agent.records import GENESIS, LONGEST_LINE, VERSION, BrokenLineError, Record, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry. Noted elsewhere (a log, a metric), it shows later that the end was cut off."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What reading a whole journal found. `first_bad` is the entry's number, which is also its line's."""

    entries: int  # good ones, from the start
    ok: bool
    head: Head  # the last good one
    first_bad: int | None = None
    problem: str = ""
    torn_tail: int = 0  # bytes of a last line that a crash left unfinished; not counted as tampering


def verify(path: Path, *, pin: Head | None = None) -> Verification:
    """Read a whole journal and say whether it is as it was written. Writes nothing.

    `pin`: a head noted earlier; without one nobody can tell that the end was cut off, or that all of it was
    written anew. Raises JournalError when the file cannot be read at all.
    """
    head, size = Head(), 0
    pinned = pin is None or pin == head
    try:
        with path.open("rb") as file:
            try:
                for record, length in chain(file):
                    head = Head(seq=record["seq"], hash=record["hash"])
                    size += length
                    pinned = pinned or head == pin
            except BrokenLineError as error:
                bad = head.seq + 1
                return Verification(entries=head.seq, ok=False, head=head, first_bad=bad, problem=str(error))
            file.seek(size)
            torn = file.read(LONGEST_LINE)
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error}") from error
    if pin is not None and not pinned:
        bad = min(pin.seq, head.seq + 1)
        problem = f"entry {pin.seq} is not the one with hash {pin.hash}: the end was cut off or written anew"
        return Verification(entries=head.seq, ok=False, head=head, first_bad=bad, problem=problem)
    return Verification(entries=head.seq, ok=True, head=head, torn_tail=len(torn))


def chain(file: io.BufferedReader) -> Iterator[tuple[Record, int]]:
    """Every finished entry from the start, with the bytes of its line.

    Ends before an unfinished last line: one without a newline, or with zeros where a page did not reach the
    disk. Raises BrokenLineError at the first entry that is not what was written there.
    """
    head = Head()
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise BrokenLineError("it is longer than any entry")
        if not line.endswith(b"\n") or (b"\0" in line and not file.peek(1)):
            return
        record = read(line[:-1], head)
        head = Head(seq=record["seq"], hash=record["hash"])
        yield record, len(line)


def read(line: bytes, head: Head) -> Record:
    """The record of a line (without its newline) that must have been written after `head`.

    Raises BrokenLineError.
    """
    record = parse(line)
    unhashed = line.replace(b'"hash":"%s",' % record["hash"].encode(), b"", 1)
    if hashlib.sha256(unhashed).hexdigest() != record["hash"]:
        raise BrokenLineError("its content is not what its hash was made of: it was edited")
    if record["v"] != VERSION:
        raise BrokenLineError(f"it is of version {record['v']}, this trimtab reads version {VERSION}")
    if record["seq"] > head.seq + 1:
        raise BrokenLineError(f"it is entry {record['seq']}: entries before it are missing or were moved")
    if record["seq"] <= head.seq:
        raise BrokenLineError(f"it is entry {record['seq']} again: it was duplicated, moved or inserted")
    if record["prev"] != head.hash:
        raise BrokenLineError("it was written after another entry than the one that stands before it")
    return record

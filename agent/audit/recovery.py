"""Reads a journal at start: verifies the open file in full, and that the ends of the closed files connect.

Each closed file costs two lines, so the time of a start does not grow with the journal. `flettner audit
verify` reads every file in full.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import Head, head_before, read_chain, read_record, removed_heads
from flettner.agent.audit.checkpoints import Signer
from flettner.agent.audit.records import LONGEST_LINE, BrokenLineError, JournalRecord, parse_state
from flettner.agent.audit.segments import Segment, last_line, open_plain
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.state import State


def recover(
    path: Path,
    older: Sequence[Segment],
    signer: Signer | None,
    on_record: Callable[[JournalRecord, int], None],
) -> tuple[list[State], bytes]:
    """Return the last state of each target, and the bytes of a last line that a crash left unfinished.

    `on_record` gets each record of the open file and its length in bytes. Raises JournalError if the journal
    was changed.
    """
    latest: dict[str, JournalRecord] = {}
    removed: set[Head] = set()
    _check_closed_files(path, older, signer)
    start, line, size = _read_end(path, older[-1], signer) if older else None, 0, 0
    head = start or Head()
    try:
        with open_plain(path) as file:
            for record, length in read_chain(file, start):
                start = start or head_before(record)
                _check_signature(record, signer)
                on_record(record, length)
                line, size = line + 1, size + length
                head = Head(seq=record["seq"], hash=record["hash"])
                removed |= removed_heads(record)
                if record["state"] is not None:
                    latest[str(record["state"].get("target"))] = record
            file.seek(size)
            torn = file.read()
    except BrokenLineError as error:
        raise _error(path, head.seq + 1, line + 1, str(error)) from error
    if older and not line:
        raise _error(path, head.seq + 1, 1, "the file is empty")
    if start and start.seq and not older and start not in removed:
        why = "entries before it are missing, and no entry records their removal"
        raise _error(path, 1, 1, why)
    return [_state(path, record) for record in latest.values()], torn


def _check_closed_files(path: Path, older: Sequence[Segment], signer: Signer | None) -> None:
    """Raise JournalError for a closed file that does not continue the one before it."""
    for earlier, later in pairwise(older):
        end = _read_end(path, earlier, signer)
        with open_plain(later.path) as file:
            line = file.readline(LONGEST_LINE)
        try:
            first = read_record(line.removesuffix(b"\n"), end)["seq"]
        except BrokenLineError as error:
            raise _error(path, end.seq + 1, 1, f"in {later.path.name}: {error}") from error
        if first != later.first:
            raise _error(path, first, 1, f"in {later.path.name}, which should begin with {later.first}")


def _read_end(path: Path, segment: Segment, signer: Signer | None) -> Head:
    """Return the last entry of a closed file."""
    try:
        record = read_record(last_line(segment.path), None)
        _check_signature(record, signer)
    except BrokenLineError as error:
        why = f"the end of {segment.path.name} cannot be read or was changed: {error}"
        raise _error(path, segment.first, 1, why) from error
    return Head(seq=record["seq"], hash=record["hash"])


def _check_signature(record: JournalRecord, signer: Signer | None) -> None:
    """Raise BrokenLineError for a checkpoint that names our key without its valid signature."""
    if signer and record["action"] == checkpoints.ACTION and record["after"].get("signer") == signer.id:
        problem = checkpoints.find_problem(record, signer.public_keys)
        if problem:
            raise BrokenLineError(problem)


def _state(path: Path, record: JournalRecord) -> State:
    try:
        state = parse_state(record)
    except BrokenLineError as error:
        raise JournalError(f"{path}: entry {record['seq']}: {error}") from error
    if state is None:
        raise AssertionError(f"entry {record['seq']} was kept for its state")
    return state


def _error(path: Path, seq: int, line: int, problem: str) -> JournalError:
    return JournalError(
        f"{path}: entry {seq} (line {line}) is bad: {problem}. Nothing was changed. Keep a copy, find out "
        f"what wrote to it, move {path.stem}*{path.suffix} away, and start with --accept-new-journal"
    )

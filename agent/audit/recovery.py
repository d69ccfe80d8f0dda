"""What a restart reads of a journal: the file that grows, checked, and if the ends of the closed ones fit.

Of a closed file that is two lines, so a start takes no longer for a large one; `audit verify` reads it whole.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from agent.audit import checkpoints
from agent.audit.chain import Head, before, chain, cuts_in, read
from agent.audit.checkpoints import Signer
from agent.audit.records import LONGEST_LINE, BrokenLineError, JournalRecord, parse_state
from agent.audit.segments import Segment, last_line
from agent.domain.errors import JournalError
from agent.domain.state import State


def reread(
    path: Path, older: Sequence[Segment], signer: Signer | None, take: Callable[[JournalRecord, int], None]
) -> tuple[list[State], bytes]:
    """The last state of each target, and what a crash left of a last line.

    `take` gets each record, and how many bytes it has. Raises JournalError when the file is not as written.
    """
    last: dict[str, JournalRecord] = {}
    cuts: set[Head] = set()
    _refuse_gaps(path, older, signer)
    start, line, size = _end_of(path, older[-1], signer) if older else None, 0, 0
    head = start or Head()
    try:
        with path.open("rb") as file:
            for record, length in chain(file, start):
                start = start or before(record)
                _check(record, signer)
                take(record, length)
                line, size = line + 1, size + length
                head = Head(seq=record["seq"], hash=record["hash"])
                cuts |= cuts_in(record)
                if record["state"] is not None:
                    last[str(record["state"].get("target"))] = record
            file.seek(size)
            torn = file.read()
    except BrokenLineError as error:
        raise _refused(path, head.seq + 1, line + 1, str(error)) from error
    if older and not line:
        raise _refused(path, head.seq + 1, 1, "nothing is left of what stood here")
    if start and start.seq and not older and start not in cuts:
        why = "entries before it are missing, and no entry says that they were removed"
        raise _refused(path, 1, 1, why)
    return [_state(path, record) for record in last.values()], torn


def _refuse_gaps(path: Path, older: Sequence[Segment], signer: Signer | None) -> None:
    """Raises JournalError for a closed file that does not begin with the entry after the one before it."""
    for earlier, later in pairwise(older):
        end = _end_of(path, earlier, signer)
        with later.path.open("rb") as file:
            line = file.readline(LONGEST_LINE)
        try:
            found = read(line.removesuffix(b"\n"), end)["seq"]
        except BrokenLineError as error:
            raise _refused(path, end.seq + 1, 1, f"in {later.path.name}: {error}") from error
        if found != later.first:
            raise _refused(path, found, 1, f"in {later.path.name}, which should begin with {later.first}")


def _end_of(path: Path, segment: Segment, signer: Signer | None) -> Head:
    """The last entry of a closed file."""
    try:
        record = read(last_line(segment.path), None)
        _check(record, signer)
    except BrokenLineError as error:
        why = f"the end of {segment.path.name} cannot be read, or is not as it was written: {error}"
        raise _refused(path, segment.first, 1, why) from error
    return Head(seq=record["seq"], hash=record["hash"])


def _check(record: JournalRecord, signer: Signer | None) -> None:
    """Raises BrokenLineError for a checkpoint that bears our key's name and not its signature."""
    if signer and record["action"] == checkpoints.ACTION and record["after"].get("signer") == signer.id:
        problem = checkpoints.problem_of(record, signer.trusted)
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


def _refused(path: Path, seq: int, line: int, problem: str) -> JournalError:
    return JournalError(
        f"{path}: entry {seq} (line {line}) is bad: {problem}. Nothing was changed. Keep a copy, find out "
        f"who wrote to it, and move {path.stem}*{path.suffix} away to start a new journal"
    )

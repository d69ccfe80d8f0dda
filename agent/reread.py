"""What a restart reads of a journal: the file that grows, checked, and that it follows the one before."""

from collections.abc import Callable, Sequence
from pathlib import Path

from agent import checkpoints
from agent.chain import Head, before, chain, cuts_in
from agent.checkpoints import Signer
from agent.errors import JournalError
from agent.records import BrokenLineError, Record, parse, state_of
from agent.segments import Segment, last_line
from agent.state import State


def reread(
    path: Path, older: Sequence[Segment], signer: Signer | None, take: Callable[[Record, int], None]
) -> tuple[list[State], bytes]:
    """The last state of each target, and what a crash left of a last line.

    `take` gets each record, and how many bytes it has. Raises JournalError when the file is not as written.
    """
    last: dict[str, Record] = {}
    cuts: set[Head] = set()
    start, line, size = _end_of(path, older), 0, 0
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


def _end_of(path: Path, older: Sequence[Segment]) -> Head | None:
    """The last entry of the newest closed file; None without one: the first entry names it."""
    if not older:
        return None
    newest = older[-1]
    try:
        record = parse(last_line(newest.path))
    except BrokenLineError as error:
        why = f"the end of {newest.path.name}, before it, cannot be read"
        raise _refused(path, newest.first, 1, why) from error
    return Head(seq=record["seq"], hash=record["hash"])


def _check(record: Record, signer: Signer | None) -> None:
    """Raises BrokenLineError for a checkpoint that bears our key's name and not its signature."""
    if signer and record["action"] == checkpoints.ACTION and record["after"].get("signer") == signer.id:
        problem = checkpoints.problem_of(record, signer.trusted)
        if problem:
            raise BrokenLineError(problem)


def _state(path: Path, record: Record) -> State:
    try:
        state = state_of(record)
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

"""The files of a journal: `audit.jsonl`, which grows, and beside it the closed ones, which only ever go.

A closed one is named after its first entry, `audit-000000000001.jsonl`, so that names sort as entries do:
`cat audit-*.jsonl audit.jsonl` is the whole journal. A new file takes the old one's place in one step: there
is an `audit.jsonl` at every instant; a crash in between leaves at worst a second name, or a draft.
"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.domain.errors import JournalError

BLOCK = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """When a file is closed, and how long closed ones are kept: whichever comes first."""

    segment_bytes: int = 16 * 2**20
    segment_s: float = 86400.0
    keep_s: float = 366 * 86400.0
    keep_bytes: int = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    first: int  # number of its first entry
    path: Path


def closed(path: Path) -> list[Segment]:
    """The closed files of the journal that grows at `path`, oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}-([0-9]{{12,16}}){re.escape(path.suffix)}")
    found = [
        Segment(first=int(match[1]), path=path.parent / there)
        for there in os.listdir(path.parent)  # noqa: PTH208 - its errors name the directory
        if (match := name.fullmatch(there))
    ]
    return sorted(found, key=lambda segment: segment.first)


def reading(path: Path, after: int = 0) -> Iterator[tuple[str, io.BufferedReader, bool]]:
    """The files that hold the entries after number `after`, in order: name, open file, whether it grows.

    The one that grows is opened first: closed meanwhile, it is still the end of what is read.
    """
    with path.open("rb") as grows:
        it = os.fstat(grows.fileno())
        older = [segment for segment in closed(path) if not os.path.samestat(segment.path.stat(), it)]
        ends = [*(segment.first for segment in older[1:]), after + 2]
        for segment, end in zip(older, ends, strict=False):
            if end > after + 1:
                with segment.path.open("rb") as file:
                    yield segment.path.name, file, False
        yield path.name, grows, True


def name_of(path: Path, first: int) -> Path:
    """What a file of the journal is called once it is closed."""
    return path.with_name(f"{path.stem}-{first:012d}{path.suffix}")


def draft_of(path: Path) -> Path:
    return path.with_suffix(".next")


def replace(path: Path, first: int, content: bytes) -> int:
    """Close the file that grows, put one with `content` in its place; gives a descriptor to append to it.

    OSError: nothing has changed.
    """
    draft, name = draft_of(path), name_of(path, first)
    with suppress(FileNotFoundError):
        draft.unlink()
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
        os.link(path, name)
        try:
            sync_directory(path.parent)
            draft.replace(path)
        except OSError:
            name.unlink()
            raise
    except OSError:
        os.close(fd)
        with suppress(OSError):
            draft.unlink()
        raise
    with suppress(OSError):  # it is in place for every reader; at worst a power failure takes it back whole
        sync_directory(path.parent)
    return fd


def tidy(path: Path) -> None:
    """Take away what a crash in the middle of `replace` left: nothing in it was ever part of the journal."""
    with suppress(FileNotFoundError):
        draft_of(path).unlink()
    older = closed(path)
    if older and path.exists() and path.samefile(older[-1].path):
        older[-1].path.unlink()


def last_line(path: Path) -> bytes:
    """The last line, without its newline, of a file that ends with one; b"" of any other."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and tail.count(b"\n", 0, max(len(tail) - 1, 0)) == 0:
            step = min(BLOCK, at)
            at = file.seek(at - step)
            tail = file.read(step) + tail
    if not tail.endswith(b"\n"):
        return b""
    return tail[:-1].rpartition(b"\n")[2]


def keep_aside(torn: bytes, path: Path) -> Path:
    """Put the bytes of an unfinished line into a file of their own. OSError: there is none."""
    for number in range(1, 10_000):
        kept = path.with_suffix(f".torn-{number}")
        try:
            fd = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(torn)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            kept.unlink()
            raise
        sync_directory(path.parent)
        return kept
    raise JournalError(f"{path.parent}: holds 9,999 torn lines: move them away")


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""The files of a journal: the open file `audit.jsonl` and the closed files, which are only ever removed.

A closed file is named after its first entry, `audit-000000000001.jsonl`, so that names sort like entries:
`cat audit-*.jsonl audit.jsonl` prints the full journal. A rotation is atomic: an `audit.jsonl` exists at
every instant, and a crash leaves at worst a second name of it, or a draft.
"""

import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.domain.errors import JournalError
from flettner.primitives.files import create_file, sync_directory

TORN = "audit.truncated_tail"
BLOCK = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """When a file is closed, and how long closed files are kept.

    `keep_bytes`: the size at which the journal counts as full. No file younger than `keep_s` is ever removed.
    """

    segment_bytes: int = 16 * 2**20
    segment_s: float = 86400.0
    keep_s: float = 366 * 86400.0
    keep_bytes: int = 8 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    first: int  # seq of its first entry
    path: Path


def closed_segments(path: Path) -> list[Segment]:
    """List the closed files of the journal whose open file is `path`, oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}-([0-9]{{12,16}}){re.escape(path.suffix)}")
    closed = [
        Segment(first=int(match[1]), path=path.parent / entry)
        for entry in os.listdir(path.parent)  # noqa: PTH208 - its errors name the directory
        if (match := name.fullmatch(entry))
    ]
    return sorted(closed, key=lambda segment: segment.first)


def open_files(path: Path, after: int = 0) -> Iterator[tuple[str, io.BufferedReader, bool]]:
    """Open the files with the entries after seq `after`, in order: name, file object, whether it is the last.

    The open file is opened first: if it is closed meanwhile, it still ends the sequence.
    """
    with open_plain(path) as current:
        inode = os.fstat(current.fileno())
        older = [
            segment for segment in closed_segments(path) if not os.path.samestat(segment.path.stat(), inode)
        ]
        ends = [*(segment.first for segment in older[1:]), after + 2]
        for segment, end in zip(older, ends, strict=False):
            if end > after + 1:
                with open_plain(segment.path) as file:
                    yield segment.path.name, file, False
        yield path.name, current, True


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file of the journal to read. Raises OSError for another kind: a pipe would never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(fd, "rb")


def segment_path(path: Path, first: int) -> Path:
    """Return the name of a journal file once it is closed."""
    return path.with_name(f"{path.stem}-{first:012d}{path.suffix}")


def draft_path(path: Path) -> Path:
    return path.with_suffix(".next")


def rotate(path: Path, first: int, content: bytes) -> int:
    """Close the open file and replace it with one of `content`; return a descriptor to append to it.

    On OSError nothing has changed.
    """
    draft, name = draft_path(path), segment_path(path, first)
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
    with suppress(OSError):  # readers see it already; at worst a power failure undoes the rotation
        sync_directory(path.parent)
    return fd


def remove_leftovers(path: Path) -> None:
    """Remove the draft or second name that a crash during `rotate` left; neither is part of the journal."""
    with suppress(FileNotFoundError):
        draft_path(path).unlink()
    older = closed_segments(path)
    if older and path.exists() and path.samefile(older[-1].path):
        older[-1].path.unlink()


def last_line(path: Path) -> bytes:
    """Return the last line without its newline; b"" if the file does not end with a newline."""
    with open_plain(path) as file:
        at = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and tail.count(b"\n", 0, max(len(tail) - 1, 0)) == 0:
            step = min(BLOCK, at)
            at = file.seek(at - step)
            tail = file.read(step) + tail
    if not tail.endswith(b"\n"):
        return b""
    return tail[:-1].rpartition(b"\n")[2]


@dataclass(slots=True)
class TornLine:
    """The bytes of a last line that a crash left unfinished: moved to a file of their own, and recorded."""

    content: bytes = b""  # until it is moved
    entry: JournalEntry | None = None  # until it is written

    def __bool__(self) -> bool:
        return bool(self.content) or self.entry is not None

    def move(self, path: Path, fd: int, size: int, *, at: datetime, epoch: int) -> None:
        """Move the bytes beyond `size` of the open file elsewhere. Raises JournalError."""
        if not self.content:
            return
        try:
            saved = _save_torn_line(self.content, path)
            os.ftruncate(fd, size)
        except OSError as error:
            raise JournalError(f"{path}: a torn line cannot be moved: {error}") from error
        why = f"a crash left the last line unfinished; its {len(self.content)} bytes are in {saved.name}"
        digest = hashlib.sha256(self.content).hexdigest()
        after = {"bytes": len(self.content), "sha256": digest, "file": saved.name}
        self.content = b""
        self.entry = JournalEntry(at=at, actor=DAEMON, action=TORN, why=why, after=after, epoch=epoch)


def _save_torn_line(torn: bytes, path: Path) -> Path:
    """Save the bytes of an unfinished line in a new file. On OSError no file is left."""
    for number in range(1, 10_000):
        saved = path.with_suffix(f".torn-{number}")
        try:
            create_file(saved, torn, mode=0o600)
        except FileExistsError:
            continue
        return saved
    raise JournalError(f"{path.parent}: holds 9,999 torn lines: remove them")

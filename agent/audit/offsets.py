"""Byte offsets of journal entries, so that a page of entries is read from disk without reading the rest."""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from flettner.agent.audit.records import BrokenLineError, JournalRecord, parse_record
from flettner.agent.audit.segments import Segment, segment_path
from flettner.agent.domain.errors import JournalError

STRIDE = 64
"""The number of entries for which one offset is kept."""
UNLIMITED = sys.maxsize
SLICE_BYTES = 64 * 1024
"""Of the journal that the event loop reads at once: some milliseconds."""


@dataclass(slots=True)
class RecordOffsets:
    path: Path  # of the open file
    older: list[Segment] = field(default_factory=list)  # closed files, oldest first
    first: int = 1  # seq of the first entry in the open file
    _starts: dict[Path, list[int]] = field(default_factory=dict)  # byte offset of every STRIDEth entry

    def add(self, seq: int, start: int) -> None:
        """Record that entry `seq` starts at byte `start` of the open file."""
        if start == 0:
            self.first = seq
        if (seq - self.first) % STRIDE == 0:
            self._starts.setdefault(self.path, []).append(start)

    def rotate(self) -> None:
        """Record that the open file was closed and replaced."""
        closed = Segment(first=self.first, path=segment_path(self.path, self.first))
        self.older.append(closed)
        self._starts[closed.path] = self._starts.pop(self.path, [])

    def forget(self, segment: Segment) -> None:
        self.older.remove(segment)
        self._starts.pop(segment.path, None)

    def after(self, seq: int, limit: int, limit_bytes: int, last: int) -> list[JournalRecord]:
        """Read the entries after `seq` up to `last`, in order, at most `limit`, up to the one that reaches
        `limit_bytes`.

        Raises JournalError.
        """
        records: list[JournalRecord] = []
        files = [*self.older, Segment(first=self.first, path=self.path)]
        first = max(seq + 1, files[0].first)
        at = bisect_right(files, first, key=lambda file: file.first) - 1
        ends = [*(file.first for file in files[at + 1 :]), last + 1]
        try:
            for file, end in zip(files[at:], ends, strict=True):
                count = min(limit - len(records), end - first)
                for line in self._lines(file, first, count):
                    records.append(parse_record(line))
                    limit_bytes -= len(line)
                    if limit_bytes <= 0:
                        return records
                first = max(first, end)
        except (OSError, BrokenLineError) as error:
            raise JournalError(f"{self.path}: entries after {seq} cannot be read: {error}") from error
        return records

    def _lines(self, file: Segment, first: int, count: int) -> Iterator[bytes]:
        if count <= 0:
            return
        starts = self._starts.get(file.path) or self._build_index(file.path)
        block, skip = divmod(first - file.first, STRIDE)
        with file.path.open("rb") as lines:
            lines.seek(starts[block])
            yield from islice(lines, skip, skip + count)

    def _build_index(self, path: Path) -> list[int]:
        """Index a file that this process has not written."""
        starts, size = self._starts.setdefault(path, []), 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                if number % STRIDE == 0:
                    starts.append(size)
                size += len(line)
        return starts

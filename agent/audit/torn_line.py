"""The bytes of a last line that a crash left unfinished: moved to a file of their own, and recorded."""

import hashlib
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flettner.agent.audit import segments
from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.domain.errors import JournalError

ACTION = "audit.truncated_tail"


@dataclass(slots=True)
class TornLine:
    content: bytes = b""  # until it is moved
    entry: JournalEntry | None = None  # until it is written

    def __bool__(self) -> bool:
        return bool(self.content) or self.entry is not None

    def move(self, path: Path, fd: int, size: int, *, at: datetime, epoch: int) -> None:
        """Move the bytes beyond `size` of the open file elsewhere. Raises JournalError."""
        if not self.content:
            return
        try:
            saved = segments.save_torn_line(self.content, path)
            os.ftruncate(fd, size)
        except OSError as error:
            raise JournalError(f"{path}: a torn line cannot be moved: {error}") from error
        why = f"a crash left the last line unfinished; its {len(self.content)} bytes are in {saved.name}"
        digest = hashlib.sha256(self.content).hexdigest()
        after = {"bytes": len(self.content), "sha256": digest, "file": saved.name}
        self.content = b""
        self.entry = JournalEntry(at=at, actor=DAEMON, action=ACTION, why=why, after=after, epoch=epoch)

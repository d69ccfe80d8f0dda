"""The journal's file that grows: each line is written and synced in full, or not at all."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flettner.agent.domain.errors import JournalError


@dataclass(slots=True)
class OpenFile:
    path: Path
    sync: Callable[[int], None]
    fd: int = -1
    size: int = 0  # bytes of complete lines

    def open(self) -> None:
        """Open the file, and create it if there is none. Raises OSError."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def write(self, line: bytes, seq: int) -> None:
        """Write entry `seq`; the caller adds its length to `size`. Raises JournalError."""
        if not self.is_open:
            raise JournalError(f"{self.path}: is closed; entry {seq} was not written")
        try:
            if os.fstat(self.fd).st_size != self.size:
                os.ftruncate(self.fd, self.size)  # the rest of an earlier failed write
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self.fd, rest) :]
            self.sync(self.fd)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self.fd, self.size)
            raise JournalError(f"{self.path}: entry {seq} cannot be written: {error}") from error

    def replace(self, fd: int) -> None:
        """Continue with the file that a rotation created."""
        self.close()
        self.fd, self.size = fd, 0

    def close(self) -> None:
        if self.is_open:
            os.close(self.fd)
            self.fd = -1

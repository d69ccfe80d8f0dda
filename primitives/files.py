"""Files that are read up to a limit, written once, or replaced as a whole."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_file(path: Path, at_most: int) -> bytes:
    """Read the whole file. Raises OSError, also if it is larger than `at_most` bytes, or no plain file.

    A FIFO or a device may never end, and opening it may never return.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return read_bounded(file, at_most)


def read_bounded(file: _Readable, at_most: int) -> bytes:
    """Read an open file or response to its end. Raises OSError, also if it is larger than `at_most` bytes."""
    content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"it is larger than {_size(at_most)}")
    return content


def replace_file(file: Path, content: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace the content of the file, as `replacing` does. Raises OSError."""
    with replacing(file, mode=mode, durable=durable) as draft:
        draft.write(content)


@contextmanager
def replacing(file: Path, *, mode: int = 0o666, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a draft beside the file, which replaces it at the end: a crash leaves the old file or the new one.

    `durable`: so does a power cut, and afterwards the new one is on disk. After an error the old file stays
    and the draft is gone. `mode`: permissions of the new file, less the umask. Raises OSError.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as opened:
        try:
            yield opened
            opened.flush()
            if durable:
                os.fsync(opened.fileno())
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    if durable:
        sync_directory(file.parent)


def create_file(file: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a new file to the disk. Raises FileExistsError; after any other OSError there is no file."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as opened:
        try:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        except OSError:
            file.unlink()
            raise
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Write the names of the directory to the disk. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"

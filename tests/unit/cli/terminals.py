"""A pseudo-terminal of a given size that runs one command."""

import os
import pty
import re
import select
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.rig import FLETTNER

PATIENCE_S = 60.0


@dataclass(slots=True)
class Terminal:
    process: subprocess.Popen[bytes]
    keyboard: int
    text: str = ""  # the complete output

    def type(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def until(self, wanted: str) -> str:
        """Return the output since the last call up to `wanted`. Raises TimeoutError if it does not appear."""
        fresh = ""
        while wanted not in fresh:
            more = self._read()
            if not more:
                raise TimeoutError(f"{wanted!r} does not come after {self.text[-2000:]!r}")
            fresh += more
        return fresh

    def end(self) -> tuple[int, str]:
        """Return the exit status and the complete output."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S), self.text

    def _read(self) -> str:
        ready, _, _ = select.select([self.keyboard], [], [], PATIENCE_S)
        try:
            read = os.read(self.keyboard, 65536).decode() if ready else ""
        except OSError:  # EIO: the other end is closed
            read = ""
        self.text += read
        return read


@contextmanager
def terminal(
    *argv: str, columns: int = 80, env: Mapping[str, str] | None = None, through: Sequence[str] = ()
) -> Iterator[Terminal]:
    """`through`: a command that runs this one, passed as its last arguments."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}
    }
    process = subprocess.Popen(
        [*through, *FLETTNER, *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm", **(env or {})},
        start_new_session=True,
        preexec_fn=_control,  # noqa: PLW1509 - no thread of ours holds a lock here
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(ours)


def _control() -> None:
    """Make it the controlling terminal, so that Ctrl-C sends SIGINT."""
    import fcntl  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def plain(text: str) -> str:
    """Remove the control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")

"""A terminal of a given size, with one command in it."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

CODE = "import sys; from agent.cli.dispatch import main; sys.exit(main(sys.argv[1:]))"
PATIENCE_S = 60.0


@dataclass(slots=True)
class Terminal:
    process: subprocess.Popen[bytes]
    keyboard: int
    text: str = ""  # all that was shown

    def type(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def until(self, wanted: str) -> str:
        """What came since the last look, up to `wanted`. TimeoutError when it does not come."""
        fresh = ""
        while wanted not in fresh:
            more = self._read()
            if not more:
                raise TimeoutError(f"{wanted!r} does not come after {self.text[-2000:]!r}")
            fresh += more
        return fresh

    def end(self) -> tuple[int, str]:
        """Its exit status, and all that it has shown."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S), self.text

    def _read(self) -> str:
        ready, _, _ = select.select([self.keyboard], [], [], PATIENCE_S)
        try:
            read = os.read(self.keyboard, 65536).decode() if ready else ""
        except OSError:  # EIO: nobody is at the other end any more
            read = ""
        self.text += read
        return read


@contextmanager
def terminal(
    *argv: str, columns: int = 80, env: Mapping[str, str] | None = None, through: Sequence[str] = ()
) -> Iterator[Terminal]:
    """`through`: what the command is given to, as its last arguments; else it is started itself."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    kept = {name: said for name, said in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = subprocess.Popen(
        [*through, sys.executable, "-c", CODE, *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm", **(env or {})},
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
    """The terminal becomes the session's own: Ctrl-C typed into it is SIGINT."""
    import fcntl  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def plain(text: str) -> str:
    """Without what is not shown."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")

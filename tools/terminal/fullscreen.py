"""Full-screen output; the terminal is restored however the command ends."""

import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from flettner.tools.terminal.capabilities import DIM, RED, add_colour
from flettner.tools.terminal.cell_width import clip

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"  # alternate screen, no cursor; xterm
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
QUIT = frozenset("qQ\x04\x1b")  # also Ctrl-D and Esc
ARROWS = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")  # and other keys whose code starts with Esc
ENDING = (signal.SIGTERM, signal.SIGHUP)


class _EndedError(BaseException):
    """A signal that ends the process after the terminal is restored."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True)
class Screen:
    """`keyboard`: file descriptor of the keyboard; None if stdin is not a terminal."""

    keyboard: int | None
    before: list[Any]  # the keyboard's terminal attributes
    _size: tuple[int, int] = (0, 0)
    _shown: str = ""

    def draw(self, text: str, failure: str) -> None:
        """Replace the screen by as much of the text as fits, and in the last line the failure or the key that
        quits. Raises BrokenPipeError if the terminal is gone."""
        columns, rows = size = shutil.get_terminal_size()
        lines = text.splitlines()
        height = max(1, rows - 2)
        more = [f"... {len(lines) - height} more lines"] if len(lines) > height else []
        keys = "Ctrl-C quits" if self.keyboard is None else "q quits"
        last = add_colour(failure, RED) if failure else add_colour(keys, DIM)
        drawn = [clip(line, columns) for line in (*lines[:height], *more, last)]
        shown = HOME + f"{TO_END_OF_LINE}\n".join(drawn) + TO_END_OF_LINE + TO_END
        if (size, shown) != (self._size, self._shown):
            self._size, self._shown = size, shown
            _write(shown)

    def is_quit(self, within_s: float) -> bool:
        """True if a key of QUIT is pressed in that time, or the keyboard is gone. Any key ends the wait."""
        keyboards = [] if self.keyboard is None else [self.keyboard]
        ready, _, _ = select.select(keyboards, [], [], within_s)
        typed = ""
        with suppress(OSError):  # EIO: the terminal is gone
            for keyboard in ready:
                typed = os.read(keyboard, 64).decode(errors="replace")
        return bool(ready) and (not typed or not QUIT.isdisjoint(ARROWS.sub("", typed)))

    def enter(self) -> None:
        if self.keyboard is not None:
            tty.setcbreak(self.keyboard)
        _write(ENTER + self._shown)

    def leave(self) -> None:
        with suppress(BrokenPipeError):
            _write(LEAVE)
        if self.keyboard is not None:
            with suppress(termios.error):  # it is gone
                termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self.before)

    def suspend(self, *_: object) -> None:
        """On Ctrl-Z return the terminal to the shell until `fg`."""
        self.leave()
        signal.raise_signal(signal.SIGSTOP)
        self.enter()


@contextmanager
def open_screen() -> Iterator[Screen]:
    """Yield a full screen, left at the end and before SIGTERM or SIGHUP ends the process."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    screen = Screen(keyboard, [] if keyboard is None else termios.tcgetattr(keyboard))
    handlers = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT, signal.SIGTSTP)}
    handled = [number for number in handlers if handlers[number] is not signal.SIG_IGN]  # nohup ignores one
    try:
        with ExitStack() as after:
            for number in handled:
                after.callback(signal.signal, number, handlers[number])
            for number in set(handled) & set(ENDING):
                signal.signal(number, _raise_ended)
            after.callback(screen.leave)
            screen.enter()
            if signal.SIGTSTP in handled:
                signal.signal(signal.SIGTSTP, screen.suspend)
            after.callback(_ignore_signals)
            yield screen
    except _EndedError as end:
        signal.signal(end.number, signal.SIG_DFL)
        signal.raise_signal(end.number)


def _raise_ended(number: int, _: FrameType | None) -> None:
    raise _EndedError(number)


def _ignore_signals() -> None:
    """A second Ctrl-C must not interrupt the restoration of the terminal."""
    for number in (*ENDING, signal.SIGINT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)


def _write(text: str) -> None:
    """Write without a buffer, so that a signal handler can write at any time."""
    rest = text.encode(sys.stdout.encoding, errors="replace")
    try:
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except OSError as error:
        raise BrokenPipeError("the terminal is gone") from error

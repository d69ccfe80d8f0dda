"""The whole terminal for a while: it is given back as it was, however the command ends."""

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

from agent.terminal.capabilities import DIM, RED, coloured
from agent.terminal.cell_width import clipped

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"  # a screen of its own, no cursor; xterm
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
QUIT = frozenset("qQ\x04\x1b")  # also Ctrl-D and Esc
ARROWS = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")  # and other keys that begin as Esc does
ENDING = (signal.SIGTERM, signal.SIGHUP)


class _EndedError(BaseException):
    """A signal that ends the process, once the terminal is given back."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True)
class Screen:
    """`keyboard`: where keys are read from as they are typed; None: no keyboard is there."""

    keyboard: int | None
    before: list[Any]  # how the keyboard was set
    _size: tuple[int, int] = (0, 0)
    _shown: str = ""

    def draw(self, text: str, trouble: str) -> None:
        """As much of the text as there is room for, over what was shown before, and in the last line the
        trouble or how this ends. BrokenPipeError: no terminal is there any more."""
        columns, rows = size = shutil.get_terminal_size()
        lines = text.splitlines()
        room = max(1, rows - 2)
        more = [f"... {len(lines) - room} lines more"] if len(lines) > room else []
        keys = "Ctrl-C ends this" if self.keyboard is None else "q ends this"
        last = coloured(trouble, RED) if trouble else coloured(keys, DIM)
        drawn = [clipped(line, columns) for line in (*lines[:room], *more, last)]
        shown = HOME + f"{TO_END_OF_LINE}\n".join(drawn) + TO_END_OF_LINE + TO_END
        if (size, shown) != (self._size, self._shown):
            self._size, self._shown = size, shown
            _say(shown)

    def is_quit(self, within_s: float) -> bool:
        """Is a key of QUIT typed in that time, or can none be any more? Another key ends the wait."""
        keyboards = [] if self.keyboard is None else [self.keyboard]
        ready, _, _ = select.select(keyboards, [], [], within_s)
        typed = ""
        with suppress(OSError):  # EIO: the terminal is gone
            for keyboard in ready:
                typed = os.read(keyboard, 64).decode(errors="replace")
        return bool(ready) and (not typed or not QUIT.isdisjoint(ARROWS.sub("", typed)))

    def take(self) -> None:
        if self.keyboard is not None:
            tty.setcbreak(self.keyboard)
        _say(ENTER + self._shown)

    def give_back(self) -> None:
        with suppress(BrokenPipeError):
            _say(LEAVE)
        if self.keyboard is not None:
            with suppress(termios.error):  # it is gone
                termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self.before)

    def stop(self, *_: object) -> None:
        """Ctrl-Z: until `fg` the terminal is the shell's."""
        self.give_back()
        signal.raise_signal(signal.SIGSTOP)
        self.take()


@contextmanager
def whole() -> Iterator[Screen]:
    """The terminal, until it is given back: also before SIGTERM or SIGHUP ends the process."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    screen = Screen(keyboard, [] if keyboard is None else termios.tcgetattr(keyboard))
    handlers = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT, signal.SIGTSTP)}
    heard = [number for number in handlers if handlers[number] is not signal.SIG_IGN]  # as nohup has it
    try:
        with ExitStack() as after:
            for number in heard:
                after.callback(signal.signal, number, handlers[number])
            for number in set(heard) & set(ENDING):
                signal.signal(number, _end)
            after.callback(screen.give_back)
            screen.take()
            if signal.SIGTSTP in heard:
                signal.signal(signal.SIGTSTP, screen.stop)
            after.callback(_deafen)
            yield screen
    except _EndedError as end:
        signal.signal(end.number, signal.SIG_DFL)
        signal.raise_signal(end.number)


def _end(number: int, _: FrameType | None) -> None:
    raise _EndedError(number)


def _deafen() -> None:
    """No second Ctrl-C comes between."""
    for number in (*ENDING, signal.SIGINT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    """At once: a signal that finds text in a buffer could not say anything itself."""
    rest = text.encode(sys.stdout.encoding, errors="replace")
    try:
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except OSError as error:
        raise BrokenPipeError("the terminal is gone") from error

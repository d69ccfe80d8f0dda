"""The terminal's width, full-screen support and colours (no-color.org)."""

import os
import shutil
import sys
from typing import TextIO

RED, BOLD, DIM = 31, 1, 2


def is_terminal() -> bool:
    return sys.stdout.isatty()


def has_screen() -> bool:
    """Return whether the screen can be redrawn."""
    return is_terminal() and not _is_dumb()


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal of the stream, by default stdout; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def add_colour(text: str, code: int) -> str:
    if not is_terminal() or os.environ.get("NO_COLOR") or _is_dumb():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"

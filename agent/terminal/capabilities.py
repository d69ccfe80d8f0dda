"""What a terminal can show: its width, and colours where somebody sees them (no-color.org)."""

import os
import shutil
import sys
from typing import TextIO

RED, BOLD, DIM = 31, 1, 2


def is_seen() -> bool:
    """Does what is printed go to a terminal?"""
    return sys.stdout.isatty()


def has_screen() -> bool:
    """Can what is shown be drawn anew?"""
    return is_seen() and not _is_dumb()


def columns(stream: TextIO | None = None) -> int | None:
    """Characters in a line of the terminal that a stream, else stdout, goes to; None: nobody counts them."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def coloured(text: str, code: int) -> str:
    if not is_seen() or os.environ.get("NO_COLOR") or _is_dumb():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"

"""Text in a terminal's cells: most characters take one, those of East Asian scripts and emoji two."""

import re
import textwrap
from bisect import bisect_right
from itertools import accumulate
from unicodedata import category, east_asian_width

COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
NARROW = 10  # a line or column is not made narrower
SECOND = "\uffff"  # stands for a wide character's second cell; never printable, so in no text of ours


def cells(text: str) -> int:
    """How many it takes, if nothing in it steers the terminal."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def padded(text: str, room: int) -> str:
    return text + " " * (room - cells(text))


def wrapped(text: str, room: int, indent: str, *, at_hyphens: bool) -> list[str]:
    """Lines that are no longer than the room; all but the first begin with the indent."""
    spread = "".join(char + SECOND * (_cells(char) - 1) for char in text)
    room -= SECOND in spread  # where a line ends between the two
    lines = textwrap.wrap(spread, room, subsequent_indent=indent, break_on_hyphens=at_hyphens)
    return [line.replace(SECOND, "") for line in lines]


def folded(sentence: str, room: int | None, indent: str = "  ") -> list[str]:
    """Its lines where it is longer than the room, broken between words. None: there is no end of room."""
    if room is None or cells(sentence) <= room:
        return [sentence]
    return wrapped(sentence, max(room, NARROW), indent, at_hyphens=False)


def clipped(line: str, room: int) -> str:
    """As much of a line as has room, with all of its colours."""
    if cells(COLOUR.sub("", line)) <= room:
        return line
    kept, left = "", room - 1
    for part in COLOUR.split(line):
        if COLOUR.fullmatch(part):
            kept += part
        elif left >= 0:
            beginning = _beginning(part, left)
            kept += beginning if beginning == part else f"{beginning}…"
            left = left - cells(part)
    return kept


def _beginning(text: str, room: int) -> str:
    """The most of it that the room is enough for."""
    used = list(accumulate(map(_cells, text)))
    return text[: bisect_right(used, room)]


def _cells(char: str) -> int:
    if category(char) in {"Mn", "Me"}:
        return 0
    return 2 if east_asian_width(char) in {"W", "F"} else 1

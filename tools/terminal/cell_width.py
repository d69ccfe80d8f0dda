"""Text width in terminal cells: most characters take one, East Asian characters and emoji two."""

import re
import textwrap
from bisect import bisect_right
from itertools import accumulate
from unicodedata import category, east_asian_width

COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
NARROW = 10  # minimum width of a line or column
SECOND = "\uffff"  # stands for the second cell of a wide character; not printable, so it occurs in no text


def count_cells(text: str) -> int:
    """Return the number of cells of a text without control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def pad(text: str, width: int) -> str:
    return text + " " * (width - count_cells(text))


def wrap(text: str, width: int, indent: str, *, at_hyphens: bool) -> list[str]:
    """Return the lines of at most this width; all but the first start with the indent."""
    spread = "".join(char + SECOND * (_cells(char) - 1) for char in text)
    width -= SECOND in spread  # a line may end between the two cells
    lines = textwrap.wrap(spread, width, subsequent_indent=indent, break_on_hyphens=at_hyphens)
    return [line.replace(SECOND, "") for line in lines]


def wrap_sentence(sentence: str, width: int | None, indent: str = "  ") -> list[str]:
    """Return the lines of the sentence, broken between words. Width None: unlimited."""
    if width is None or count_cells(sentence) <= width:
        return [sentence]
    return wrap(sentence, max(width, NARROW), indent, at_hyphens=False)


def clip(line: str, width: int) -> str:
    """Return the start of the line that fits, with all of its colours."""
    if count_cells(COLOUR.sub("", line)) <= width:
        return line
    text_kept, left = "", width - 1
    for part in COLOUR.split(line):
        if COLOUR.fullmatch(part):
            text_kept += part
        elif left >= 0:
            prefix = _prefix(part, left)
            text_kept += prefix if prefix == part else f"{prefix}…"
            left = left - count_cells(part)
    return text_kept


def _prefix(text: str, width: int) -> str:
    """Return the longest prefix that fits."""
    used = list(accumulate(map(_cells, text)))
    return text[: bisect_right(used, width)]


def _cells(char: str) -> int:
    if category(char) in {"Mn", "Me"}:
        return 0
    return 2 if east_asian_width(char) in {"W", "F"} else 1

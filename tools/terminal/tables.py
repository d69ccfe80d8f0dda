"""Tables and sentences that fit the terminal."""

from collections.abc import Sequence
from itertools import zip_longest

from flettner.tools.terminal.capabilities import BOLD, add_colour, terminal_width
from flettner.tools.terminal.cell_width import NARROW, count_cells, pad, wrap, wrap_sentence
from flettner.tools.terminal.values import escape_text

GAP = "  "
READABLE = 20  # minimum cells of a prose column while other columns can still shrink


def format_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format columns as wide as their content, or narrower and wrapped to fit the terminal."""
    lines = [tuple(head), *(tuple(escape_text(cell) for cell in row) for row in rows)]
    widths = _fit_widths(list(zip(*lines, strict=True)), terminal_width())
    first, *rest = (_row(line, widths) for line in lines)
    return add_colour(first.rstrip("\n"), BOLD) + "\n" + "".join(rest)


def _fit_widths(shown: Sequence[Sequence[str]], available: int | None) -> list[int]:
    """Return the widths of the columns. The widest columns shrink until all fit: prose first, then names."""
    widths = [max(map(count_cells, column)) for column in shown]
    prose = [at for at, column in enumerate(shown) if any(" " in cell.strip() for cell in column[1:])]
    for shrinking, minimum in ((prose, READABLE), (range(len(shown)), NARROW)):
        while available is not None and sum(widths) + len(GAP) * (len(widths) - 1) > available:
            widest = max(shrinking, key=lambda at: widths[at], default=None)
            if widest is None or widths[widest] <= minimum:
                break
            widths[widest] -= 1
    return widths


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    indents = (" " * (len(cell) - len(cell.lstrip())) for cell in row)
    parts = [
        [cell] if count_cells(cell) <= width else wrap(cell, width, indent, at_hyphens=True)
        for cell, width, indent in zip(row, widths, indents, strict=True)
    ]
    return "".join(
        GAP.join(map(pad, line, widths)).rstrip() + "\n" for line in zip_longest(*parts, fillvalue="")
    )


def format_sentence(sentence: str, code: int | None = None) -> str:
    """Return the sentence wrapped to the terminal, or in one line elsewhere."""
    lines = wrap_sentence(sentence, terminal_width())
    return "".join(f"{line if code is None else add_colour(line, code)}\n" for line in lines)

"""Messages on stderr."""

import sys

from flettner.tools.terminal.capabilities import terminal_width
from flettner.tools.terminal.cell_width import wrap_sentence
from flettner.tools.terminal.values import escape_text


def complain(message: object) -> None:
    remark(f"flettner: {message}")


def remark(message: str) -> None:
    """Write a message to stderr; stdout is for the answer."""
    width = terminal_width(sys.stderr)
    lines = (line for part in message.splitlines() for line in wrap_sentence(escape_text(part), width))
    sys.stderr.writelines(f"{line}\n" for line in lines)

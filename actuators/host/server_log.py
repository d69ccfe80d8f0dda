"""Read the log of a server: its last lines, and the line with the cause of its end."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

_READ_BYTES = 256 * 1024
_TAIL = 30
_LONGEST = 500  # characters of a line
_ESCAPES = re.compile(  # ECMA-48: colours and cursor; titles and links; the rest
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]"
)
# The rest of them, and characters that change the direction or break the line of a display.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_PREFIX = re.compile(r"^(\([A-Za-z0-9_ =]+\) )?((ERROR|CRITICAL|WARNING|INFO) [0-9: -]+ \[[^\]]+\] )?\s*")

# The most specific first; of each kind the last line. vLLM's closing line only refers to the cause.
_CAUSES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)out of memory|OutOfMemoryError",
        r"\berror: .*",  # argparse
        r"No available memory for the cache blocks|KV cache is needed|less than desired GPU memory",
        r"^[\w.]*(Error|Exception|Interrupt)\b(?!: Engine core initialization failed)",
        r"^[\w.]*Error: ",
    )
)
_PYDANTIC = re.compile(r"(\d{1,4}) validation errors? for ")
_PYDANTIC_LINES = 3  # of each error: the field, the reason, and where to read more


def log_tail(log: Path, start: int = 0, hidden: Collection[str] = ()) -> tuple[str, ...]:
    """Return the last lines from byte `start` on, without colours, progress bars and secrets."""
    return log_lines(log, start, hidden)[-_TAIL:]


def log_cause(log: Path, start: int = 0, hidden: Collection[str] = ()) -> str:
    """Return the line that names the cause; empty: none."""
    return cause_in(log_lines(log, start, hidden))


def cause_in(log: Sequence[str]) -> str:
    """Return the line that names the cause; empty: none."""
    lines = [_PREFIX.sub("", line) for line in log]
    for cause in _CAUSES:
        for at in reversed(range(len(lines))):
            if cause.search(lines[at]):
                return _full_error(lines, at)
    return ""


def _full_error(lines: Sequence[str], at: int) -> str:
    pydantic = _PYDANTIC.search(lines[at])
    more = int(pydantic[1]) * _PYDANTIC_LINES if pydantic else 0
    relevant = (line.strip() for line in lines[at : at + more + 1] if "For further information" not in line)
    return " ".join(relevant)[:_LONGEST]


def log_lines(log: Path, start: int = 0, hidden: Collection[str] = ()) -> tuple[str, ...]:
    """Return the lines from byte `start` on, of a long log the end."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    return format_lines(text, hidden)


def format_lines(text: str, hidden: Collection[str] = ()) -> tuple[str, ...]:
    """Return the lines of a log without escapes, control characters and secrets."""
    for secret in sorted(filter(None, hidden), key=len, reverse=True):
        text = text.replace(secret, "***")
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    whole = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return tuple(_CONTROL.sub("\ufffd", line[:_LONGEST]) for line in whole if line.strip())

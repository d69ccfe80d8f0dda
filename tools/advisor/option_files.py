"""Files that options of the command line name."""

from pathlib import Path

from flettner.agent.domain.errors import ConfigError
from flettner.primitives.files import read_file

TRACE_HINT = "give the output of `flettner trace`, or JSON lines of that form"
LAW_HINT = "give a law of step time as JSON"
_MOST_BYTES = 256 * 2**20  # about two million recorded requests


def read_option_file(path: Path, option: str, hint: str, at_most: int = _MOST_BYTES) -> str:
    """Read the text of the file that `option` names. Raises ConfigError, also above `at_most` bytes."""
    try:
        return read_file(path, at_most).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be read: {error.strerror}; {hint}") from error

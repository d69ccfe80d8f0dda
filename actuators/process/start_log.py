"""Read how long the start of a process took from the file to which it writes its log."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from flettner.actuators.host.procfs import Process, began_at

_MOST_BYTES = 4 * 2**20  # of a log's head: vLLM writes some kilobytes until it serves
_MAX_START_S = 6 * 3600.0
_SERVES = re.compile(rb"pid=(\d+)\).* (\d\d-\d\d \d\d:\d\d:\d\d) .*Starting vLLM (?:API )?server")


def read_start(process: Process | None) -> tuple[float | None, Sequence[bytes]]:
    """Return the seconds until the process served, and the lines of its start; (None, ()): not known.

    vLLM writes seconds of the local time, without the year.
    """
    if process is None:
        return None, ()
    began, lines = began_at(process), _read_head(process.pid)
    for number, line in enumerate(lines):
        match = _SERVES.search(line)
        if match is None or began is None or int(match[1]) != process.pid:
            continue
        with suppress(ValueError):  # a day that the year does not have
            served = datetime.strptime(f"{began.year}-{match[2].decode()}", "%Y-%m-%d %H:%M:%S").astimezone()
            took_s = (served - began).total_seconds()
            if -1 <= took_s <= _MAX_START_S:
                return max(took_s, 0.0), lines[:number]
    return None, ()


def _read_head(pid: int) -> Sequence[bytes]:
    """Return the first lines of the file that is the process's output; () if it is no file of this host."""
    for output in ("1", "2"):
        path = Path("/proc") / str(pid) / "fd" / output
        with suppress(OSError):
            if path.is_file():  # and no pipe, of which a reader would take lines
                with path.open("rb") as file:
                    return file.read(_MOST_BYTES).splitlines()
    return ()

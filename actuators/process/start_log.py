"""Read how long the start of a process took from the file to which it writes its log."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from flettner.actuators.host.procfs import Process, began_at
from flettner.actuators.vllm.start_log import LONGEST_START_S

_HEAD_BYTES = 4 * 2**20  # of a file to which earlier starts may have written
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
            if -1 <= took_s <= LONGEST_START_S:
                return max(took_s, 0.0), lines[:number]
    return None, ()


def _read_head(pid: int) -> Sequence[bytes]:
    """Return the first lines of the file that is the process's output; () if it is no file of this host."""
    for output in ("1", "2"):
        path = Path("/proc") / str(pid) / "fd" / output
        if path.is_file():  # and no pipe, of which a reader would take lines
            return read_lines(path, 0, _HEAD_BYTES)
    return ()


def read_lines(path: Path, start: int, most_bytes: int) -> Sequence[bytes]:
    """Return the lines from byte `start` on; () if the file cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return file.read(most_bytes).splitlines()
    return ()

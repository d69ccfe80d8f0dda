"""Read from the log of a start by what its time was taken."""

import re
from collections.abc import Iterable

LONGEST_START_S = 6 * 3600.0
"""A longer one is an error of the clock or of the log."""

_LOADED = re.compile(rb"Model loading took [0-9.]+ GiB(?: memory)? and ([0-9.]+) seconds")
_READY = re.compile(rb"init engine \([^)]*\) took ([0-9.]+) s(?:econds)?(?: \(compilation: ([0-9.]+) s)?")


def describe_start(lines: Iterable[bytes]) -> list[str]:
    """Return a note on the parts of a start, by vLLM's own log; [] if it names none. Ranks work at once."""
    loaded, ready, compiled = 0.0, 0.0, 0.0
    for line in lines:
        if match := _LOADED.search(line):
            loaded = max(loaded, float(match[1]))
        if match := _READY.search(line):
            ready, compiled = max(ready, float(match[1])), max(compiled, float(match[2] or 0))
    if not loaded or not ready:
        return []
    rest = f"{ready - compiled:.0f} s for the KV cache and graphs"
    return [f"of the last start {loaded:.0f} s loaded the model, {compiled:.0f} s compiled, {rest}"]

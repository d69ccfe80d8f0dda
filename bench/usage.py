"""CPU and memory of processes, by proc(5)."""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU since the start, s, and resident memory, MiB, of some processes together."""

    cpu_s: float = 0.0
    rss_mib: float = 0.0


def usage_of(*pids: int) -> Usage:
    """Return the user and system time, and the resident pages."""
    cpu, pages = 0, 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        cpu += sum(map(int, fields[11:13]))
        pages += int(fields[21])
    return Usage(cpu / TICKS_PER_S, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

"""Prints the wall time of one `flettner lint`, process start included; the limit is 300 ms.

The modules are compiled once before, as in every installation, also where the shell forbids to keep them.

Writes the times and the slowest imports to bench/results/. Exits 1 if the fastest run exceeds the limit;
slower runs mostly reflect other load on the machine.
"""

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.results import new_parser, write

ROUNDS = 15
ALLOWED_MS = 300.0
COSTLIEST = 8
COMMAND = (
    *(str(Path(sys.executable).parent / "flettner"), "lint", "--gpu", "T4", "--gpus", "4"),
    *("--vllm-version", "0.32.0", "--", "vllm", "serve", "Qwen/Qwen2.5-1.5B-Instruct"),
    *("--tensor-parallel-size", "4", "--dtype", "bfloat16", "--enforce-eager", "--swap-space", "4"),
)
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_IMPORTED = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")


def once_ms() -> float:
    """Return the wall time of one run. Raises RuntimeError if the output is not that of lint."""
    before = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own
        COMMAND, capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    spent_ms = (time.perf_counter() - before) * 1e3
    if done.returncode not in (0, 1):
        raise RuntimeError(f"lint ended with {done.returncode}: {done.stderr}")
    return spent_ms


def imports_ms() -> dict[str, float]:
    """Return the cumulative time of each top-level import, slowest first."""
    command = (sys.executable, "-X", "importtime", *COMMAND)
    done = subprocess.run(  # noqa: S603 - our own
        command, capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    imports = _IMPORTED.findall(done.stderr)
    top = {name: int(with_all) / 1e3 for _, with_all, indent, name in imports if len(indent) <= 2}  # noqa: PLR2004
    return dict(sorted(top.items(), key=lambda row: -row[1])[:COSTLIEST])


def main() -> int:
    options = new_parser("bench.lint_time", __doc__, "lint_time.json").parse_args()
    once_ms()  # warm the page cache
    cpu_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = sorted(once_ms() for _ in range(ROUNDS))
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = cpu.ru_utime + cpu.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime
    cpu_ms = cpu_s * 1e3 / ROUNDS
    best, median, worst = spent[0], statistics.median(spent), spent[-1]
    print(
        f"lint: best {best:.0f} ms, median {median:.0f} ms, worst {worst:.0f} ms ({ALLOWED_MS:.0f} allowed)"
    )
    costs = imports_ms()
    for name, cost in costs.items():
        print(f"  {cost:6.1f} ms  import {name}")
    report = {
        "command": ["flettner", *COMMAND[1:]],
        "rounds": ROUNDS,
        "ms": {"best": best, "median": median, "worst": worst, "cpu_mean": cpu_ms},
        "imports_ms": costs,
    }
    write(options.json, report)
    return int(best > ALLOWED_MS)


if __name__ == "__main__":
    sys.exit(main())

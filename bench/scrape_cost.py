"""Prints the CPU time of one scrape and writes it to bench/results/ (argument: a saved page).

Reads a real vLLM 0.32 page the way the sensor does, next to prometheus_client's own parser where installed.
"""

import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from flettner.agent.observe.engine_sample import sample
from flettner.vllm_facts.metrics.totals import PageReader, totals

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "tests/support/scrapes/vllm-0.32.txt"
ROUNDS = 300
ALLOWED_MS = 1.0


def cpu_ms(act: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds of CPU time of this thread: best, median and 99th percentile of ROUNDS runs."""
    spent = []
    for _ in range(ROUNDS):
        before = time.thread_time_ns()
        act()
        spent.append((time.thread_time_ns() - before) / 1e6)
    spent.sort()
    return {"best": spent[0], "median": statistics.median(spent), "p99": spent[int(0.99 * ROUNDS)]}


def main() -> int:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    body = page.read_bytes()
    reader = PageReader()
    base = reader.totals(body)
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def scrape() -> object:
        return sample(base, reader.totals(body), at=at, server="a", interval_s=1.0, version="0.32.0")

    cost = {"flettner": cpu_ms(scrape), "its first page": cpu_ms(lambda: totals(body))}
    if importlib.util.find_spec("prometheus_client"):
        parser = importlib.import_module("prometheus_client.parser")
        text = body.decode()
        cost["prometheus_client"] = cpu_ms(lambda: list(parser.text_string_to_metric_families(text)))
    for name, one in cost.items():
        print(
            f"{name:18}"
            f" best {one['best']:6.3f} ms  median {one['median']:6.3f} ms  p99 {one['p99']:6.3f} ms"
            f"  ({len(body)} bytes)"
        )
    results = ROOT / "bench/results"
    results.mkdir(exist_ok=True)
    found = {
        "page": page.name,
        "bytes": len(body),
        "rounds": ROUNDS,
        "python": platform.python_version(),
        "cpu_ms": cost,
        "servers_per_core_at_1_hz": int(1000 / cost["flettner"]["median"]),
    }
    (results / "scrape_cost.json").write_text(json.dumps(found, indent=2) + "\n")
    return int(cost["flettner"]["median"] > ALLOWED_MS)


if __name__ == "__main__":
    sys.exit(main())

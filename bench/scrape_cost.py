"""Prints the CPU time of one scrape and writes it to bench/results/.

Reads a real vLLM 0.32 page the way the sensor does, next to prometheus_client's own parser where installed.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench.results import new_parser, write
from flettner.agent.observe.engine_sample import sample
from flettner.vllm_facts.metrics.totals import PageReader, totals

PAGE = Path(__file__).parents[1] / "tests/support/scrapes/vllm-0.32.txt"
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
    parser = new_parser("bench.scrape_cost", __doc__, "scrape_cost.json")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE, help="a saved page")
    options = parser.parse_args()
    page: Path = options.page
    body = page.read_bytes()
    reader = PageReader()
    base = reader.totals(body)
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def scrape() -> object:
        return sample(base, reader.totals(body), at=at, server="a", interval_s=1.0, version="0.32.0")

    cost = {"flettner": cpu_ms(scrape), "its first page": cpu_ms(lambda: totals(body))}
    if importlib.util.find_spec("prometheus_client"):
        library = importlib.import_module("prometheus_client.parser")
        text = body.decode()
        cost["prometheus_client"] = cpu_ms(lambda: list(library.text_string_to_metric_families(text)))
    for name, times in cost.items():
        print(
            f"{name:18}"
            f" best {times['best']:6.3f} ms  median {times['median']:6.3f} ms  p99 {times['p99']:6.3f} ms"
            f"  ({len(body)} bytes)"
        )
    report = {
        "page": page.name,
        "bytes": len(body),
        "rounds": ROUNDS,
        "cpu_ms": cost,
        "servers_per_core_at_1_hz": int(1000 / cost["flettner"]["median"]),
    }
    write(options.json, report)
    return int(cost["flettner"]["median"] > ALLOWED_MS)


if __name__ == "__main__":
    sys.exit(main())

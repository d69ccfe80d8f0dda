"""CPU and memory of one daemon by its number of targets.

    python -m bench.capacity.targets [--targets 1 10 50] [--seconds 60] [--rate 0.5]

Each target has a simulated server, `--rate` requests/s and default options; one Envoy serves all. The
daemon's CPU is that of one tick a second of each target, also where a busy machine delays ticks. Prints a
line for each number and writes bench/results/capacity_targets.json.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bench.capacity.site import cpu_percent, running
from bench.results import new_parser, write

SETTLE_S = 30.0  # after the last server has started


async def measure(targets: int, seconds: float, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fl") as folder:
        async with running(Path(folder), targets, rate) as site:
            await asyncio.sleep(SETTLE_S)
            before = await site.look()
            await asyncio.sleep(seconds)
            after = await site.look()
        counts = site.counts()
    took_s, ticks = after.at_s - before.at_s, (after.ticks - before.ticks).count
    return {
        "targets": targets,
        "seconds": round(took_s, 1),
        "requests": counts,
        "ticks_per_s": round(ticks / took_s, 2),
        "daemon_cpu_percent": cpu_percent(after.daemon, before.daemon, ticks / targets),
        "daemon_rss_mib": round(after.daemon.rss_mib, 1),
        "envoy_cpu_percent": cpu_percent(after.envoy, before.envoy, took_s),
        "envoy_rss_mib": round(after.envoy.rss_mib, 1),
    }


def per_target(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the cost of one more target, between the smallest and the largest run."""
    first, last = min(runs, key=lambda run: run["targets"]), max(runs, key=lambda run: run["targets"])
    more = last["targets"] - first["targets"]
    return {
        key: round((last[key] - first[key]) / more, 3)
        for key in ("daemon_cpu_percent", "daemon_rss_mib", "envoy_cpu_percent", "envoy_rss_mib")
        if more
    }


def main() -> None:
    parser = new_parser("bench.capacity.targets", __doc__, "capacity_targets.json")
    parser.add_argument("--targets", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.5, help="requests/s of each target")
    options = parser.parse_args()
    print("targets  ticks/s  CPU %    MiB  Envoy CPU %    MiB  lost", flush=True)
    runs = []
    for targets in options.targets:
        run = asyncio.run(measure(targets, options.seconds, options.rate))
        runs.append(run)
        lost = run["requests"]["sent"] - run["requests"]["ok"]
        print(
            f"{targets:>7} {run['ticks_per_s']:>8} {run['daemon_cpu_percent']:>6} {run['daemon_rss_mib']:>6}"
            f" {run['envoy_cpu_percent']:>13} {run['envoy_rss_mib']:>6} {lost:>5}",
            flush=True,
        )
    more = per_target(runs)
    print(f"each further target: {more}")
    write(options.json, {"rate": options.rate, "runs": runs, "more": more})


if __name__ == "__main__":
    main()

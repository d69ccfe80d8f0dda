"""What the performance model costs the daemon: CPU of the daemon and of its worker, and late ticks.

    python -m bench.capacity.model_cost [--minutes 10] [--rate 10]

Two sites side by side, one without the model (`learn` and the policy `model` off) and one with it, each with
a target, Envoy, a simulated RTX 4090 and the same load. The measurement begins once the law is accepted.
Prints both and writes bench/results/capacity_model_cost.json.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.capacity.site import (
    API,
    LISTEN,
    SERVER,
    SERVERS,
    CapacityConfig,
    CapacitySite,
    Ticks,
    name_of,
    running,
)
from flettner.simulator.workload import Shape, lengths

RESULTS = Path(__file__).parents[1] / "results"
SHAPE = Shape(prompt=lengths("lognormal:300:0.6:16:2000"), output=lengths("lognormal:60:0.6:4:400"))
FLAGS = (
    *(*SERVER[:-4], "--sim-hardware", "4090-8b", "--max-num-seqs", "64"),
    *("--max-num-batched-tokens", "2048", "--enable-logging-iteration-details"),
)
LAW_S = 1_500.0  # the longest wait for an accepted law
LOOK_S = 5.0
LATE_S = 0.1
BETWEEN = 50  # ports between the two sites; all stay below the ephemeral range


async def measure(minutes: float, rate: float) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        sites = []
        for number, model in enumerate((False, True)):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl")))
            shift = BETWEEN * number
            config = CapacityConfig(server=FLAGS, first_port=SERVERS + shift, model=model)
            place = running(home, 1, rate, config=config, api=API + shift, listen=LISTEN + shift, shape=SHAPE)
            sites.append(await stack.enter_async_context(place))
        clock = asyncio.get_running_loop().time
        began_s = clock()
        learning = sites[1].worker()
        async with asyncio.timeout(LAW_S):
            while not await _has_law(sites[1]):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(LOOK_S)  # seldom: each look costs the daemon CPU
        law_s, learning_after = clock() - began_s, sites[1].worker()
        before = [await _look(site, clock()) for site in sites]
        await asyncio.sleep(60 * minutes)
        after = [await _look(site, clock()) for site in sites]
        counts = [site.counts() for site in sites]
    without, beside = (difference(*pair) for pair in zip(before, after, strict=True))
    return {
        "minutes": minutes,
        "rate": rate,
        "law_after_s": round(law_s),
        "worker_cpu_percent_before_the_law": _percent(learning_after.cpu_s - learning.cpu_s, law_s),
        "without_the_model": {**without, "requests": counts[0]},
        "with_the_model": {**beside, "requests": counts[1]},
        "python": platform.python_version(),
    }


async def _has_law(site: CapacitySite) -> bool:
    status, document = await site.rig.ask("GET", f"/v1/targets/{name_of(0)}/model")
    return status == 200 and document["law"] is not None  # noqa: PLR2004 - HTTP


async def _look(site: CapacitySite, at_s: float) -> dict[str, Any]:
    return {
        "at_s": at_s,
        "daemon_s": site.daemon().cpu_s,
        "worker_s": site.worker().cpu_s,
        "worker_rss_mib": site.worker().rss_mib,
        "daemon_rss_mib": site.daemon().rss_mib,
        "ticks": await site.ticks(),
    }


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    took_s = after["at_s"] - before["at_s"]
    ticks: Ticks = after["ticks"] - before["ticks"]
    return {
        "daemon_cpu_percent": _percent(after["daemon_s"] - before["daemon_s"], took_s),
        "worker_cpu_percent": _percent(after["worker_s"] - before["worker_s"], took_s),
        "daemon_rss_mib": round(after["daemon_rss_mib"]),
        "worker_rss_mib": round(after["worker_rss_mib"]),
        "ticks": ticks.count,
        "ticks_late_by_100_ms": ticks.count - ticks.upto[LATE_S],
        "latest_tick_within_s": ticks.late_s(1.0),
    }


def _percent(cpu_s: float, of_s: float) -> float:
    return round(100 * cpu_s / max(of_s, 1e-9), 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity.model_cost", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="after the law was accepted")
    parser.add_argument("--rate", type=float, default=10.0, help="requests/s of each target")
    options = parser.parse_args()
    found = asyncio.run(measure(options.minutes, options.rate))
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(found, indent=2)
    (RESULTS / "capacity_model_cost.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the performance model costs the daemon: CPU of the daemon and of its worker, and late ticks.

    python -m bench.capacity.model_cost [--minutes 10] [--rate 10]

Two sites side by side, one without the model (`learn` and the policy `model` off) and one with it, each with
a target, Envoy, a simulated RTX 4090 and the same load. The measurement begins once the law is accepted.
Prints both and writes bench/results/capacity_model_cost.json.
"""

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.capacity.site import (
    API,
    LISTEN,
    SERVERS,
    CapacityConfig,
    CapacitySite,
    Look,
    cpu_percent,
    name_of,
    running,
)
from bench.results import new_parser, write
from flettner.simulator.workload import Shape, lengths
from tests.support.config_builder import SERVER

SHAPE = Shape(prompt=lengths("lognormal:300:0.6:16:2000"), output=lengths("lognormal:60:0.6:4:400"))
FLAGS = (
    *(*SERVER, "--sim-hardware", "4090-8b", "--max-num-seqs", "64"),
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
        began = await sites[1].look()
        async with asyncio.timeout(LAW_S):
            while not await _has_law(sites[1]):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(LOOK_S)  # seldom: each look costs the daemon CPU
        learnt = await sites[1].look()
        before = [await site.look() for site in sites]
        await asyncio.sleep(60 * minutes)
        after = [await site.look() for site in sites]
        counts = [site.counts() for site in sites]
    without, beside = (difference(*pair) for pair in zip(before, after, strict=True))
    law_s = learnt.at_s - began.at_s
    return {
        "minutes": minutes,
        "rate": rate,
        "law_after_s": round(law_s),
        "worker_cpu_percent_before_the_law": cpu_percent(learnt.worker, began.worker, law_s),
        "without_the_model": {**without, "requests": counts[0]},
        "with_the_model": {**beside, "requests": counts[1]},
    }


async def _has_law(site: CapacitySite) -> bool:
    status, document = await site.rig.ask("GET", f"/v1/targets/{name_of(0)}/model")
    return status == 200 and document["law"] is not None  # noqa: PLR2004 - HTTP


def difference(before: Look, after: Look) -> dict[str, Any]:
    took_s, ticks = after.at_s - before.at_s, after.ticks - before.ticks
    return {
        "daemon_cpu_percent": cpu_percent(after.daemon, before.daemon, took_s),
        "worker_cpu_percent": cpu_percent(after.worker, before.worker, took_s),
        "daemon_rss_mib": round(after.daemon.rss_mib),
        "worker_rss_mib": round(after.worker.rss_mib),
        "ticks": ticks.count,
        "ticks_late_by_100_ms": ticks.count - ticks.upto[LATE_S],
        "latest_tick_within_s": ticks.late_s(1.0),
    }


def main() -> None:
    parser = new_parser("bench.capacity.model_cost", __doc__, "capacity_model_cost.json")
    parser.add_argument("--minutes", type=float, default=10.0, help="after the law was accepted")
    parser.add_argument("--rate", type=float, default=10.0, help="requests/s of each target")
    options = parser.parse_args()
    costs = asyncio.run(measure(options.minutes, options.rate))
    write(options.json, costs)
    print(json.dumps(costs, indent=2))


if __name__ == "__main__":
    main()

"""Real rollouts under load with faults at random moments; reports lost requests, records and leftovers.

python -m bench.kills [--kills N] [--sites N] [--seed N] [--json FILE] runs the daemon, Envoy, Prometheus and
simulated servers as processes, prints a line for each fault, and exits 1 if anything was lost that the fault
does not explain. The disk-full fault requires permission to mount a small file system.
"""

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench.kills.books import MAY_COST
from bench.kills.story import Plan, tell

OTHERS = {"pause": 2, "proxy": 3, "prometheus": 2, "green": 3, "blue": 2, "full": 3}
"""Faults per site, in addition to kills."""
SLOW_S = 10.0  # a restart that takes longer to a defined state fails


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills of the daemon, over all sites")
    parser.add_argument("--sites", type=int, default=2, help="concurrent sites")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second at each site")
    parser.add_argument("--pause-s", type=float, default=60.0, help="seconds of a SIGSTOP of the daemon")
    parser.add_argument(
        "--for", type=float, default=7200.0, dest="for_s", help="seconds after which no rollout starts"
    )
    parser.add_argument(
        "--others", type=json.loads, default=OTHERS, help="number of faults of each other kind, as JSON"
    )
    parser.add_argument("--json", type=Path, default=Path("bench/results/kills.json"))
    options = parser.parse_args(argv)
    each = [len(range(place, options.kills, options.sites)) for place in range(options.sites)]
    plans = [
        Plan(
            seed=options.seed + place,
            kills=kills,
            others=options.others,
            small=place % 2 == 0,  # alternate sites use the real disk
            rate=options.rate,
            for_s=options.for_s,
            pause_s=options.pause_s,
        )
        for place, kills in enumerate(each)
    ]
    spawned = multiprocessing.get_context("spawn")  # ports are allocated per process
    with ProcessPoolExecutor(options.sites, mp_context=spawned, max_tasks_per_child=1) as pool:
        sites = list(pool.map(tell, plans))
    found = total(sites)
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps({"total": found, "sites": sites}, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 0 if found["whole"] else 1


def total(sites: Sequence[dict[str, Any]]) -> dict[str, Any]:
    lost = sum((Counter(site["lost"]) for site in sites), Counter[str]())
    back = [seconds for site in sites for seconds in site["back_s"]]
    cpu = [seconds for site in sites for seconds in site["back_cpu_s"]]
    missing = [what for site in sites for what in site["audit"]["missing"]]
    unverified = [s["audit"]["verify"] for s in sites if s["audit"]["verify"]["exit"]]
    wrong = [what for site in sites for what in site["wrong"]]
    orphans = [name for site in sites for name in site["orphans"]]
    found: dict[str, Any] = {
        "faults": dict(sum((Counter(site["faults"]) for site in sites), Counter[str]())),
        "rollouts": dict(sum((Counter(site["rollouts"]) for site in sites), Counter[str]())),
        "requests": sum(site["requests"]["sent"] for site in sites),
        "requests_lost": lost["other"],
        "requests_that_died_with": {kind: lost[kind] for kind in MAY_COST},
        "orphans": len(orphans),
        "audit_rows": sum(site["audit"]["rows"] for site in sites),
        "audit_rows_lost": len(missing) + len(unverified),
        "approvals": sum(site["audit"]["approvals"] for site in sites),
        "back_s": {"median": median(back), "most": max(back), "restarts": len(back)} if back else {},
        "back_cpu_s": cpu and {"median": median(cpu), "most": max(cpu)},
        "green_ended_s": [seconds for site in sites for seconds in site["green_ended_s"]],
        "wrong": wrong,
    }
    slow = bool(back) and max(back) >= SLOW_S
    return {**found, "whole": not (lost["other"] or orphans or missing or unverified or wrong or slow)}


if __name__ == "__main__":
    sys.exit(main())

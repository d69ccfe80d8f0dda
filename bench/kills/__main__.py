"""Real rollouts under load with faults at random moments; reports lost requests, records and leftovers.

python -m bench.kills [--kills N] [--sites N] [--seed N] [--json FILE] runs the daemon, Envoy, Prometheus and
simulated servers as processes, prints a line for each fault, and exits 1 if anything was lost that the fault
does not explain. The disk-full fault requires permission to mount a small file system.
"""

import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from bench.kills.books import MAY_COST
from bench.kills.story import Plan, run
from bench.results import new_parser, write

OTHERS = {"pause": 2, "proxy": 3, "prometheus": 2, "green": 3, "blue": 2, "full": 3}
"""Faults per site, in addition to kills."""
SLOW_S = 10.0  # a restart that takes longer to a defined state fails


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("bench.kills", __doc__, "kills.json")
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
    options = parser.parse_args(argv)
    plans = [
        Plan(
            seed=options.seed + place,
            kills=len(range(place, options.kills, options.sites)),
            others=options.others,
            small=place % 2 == 0,  # alternate sites use the real disk
            rate=options.rate,
            for_s=options.for_s,
            pause_s=options.pause_s,
        )
        for place in range(options.sites)
    ]
    spawned = multiprocessing.get_context("spawn")  # ports are allocated per process
    with ProcessPoolExecutor(options.sites, mp_context=spawned, max_tasks_per_child=1) as pool:
        sites = list(pool.map(run, plans))
    total = add_up(sites)
    write(options.json, {"total": total, "sites": sites})
    print(json.dumps(total, indent=2))
    return 0 if total["whole"] else 1


def add_up(sites: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def joined(key: str) -> list[Any]:
        return [value for site in sites for value in site[key]]

    def counted(key: str) -> Counter[str]:
        return sum((Counter(site[key]) for site in sites), Counter())

    lost, back, cpu = counted("lost"), joined("back_s"), joined("back_cpu_s")
    audits = [site["audit"] for site in sites]
    missing = sum(len(audit["missing"]) + bool(audit["verify"]["exit"]) for audit in audits)
    total: dict[str, Any] = {
        "faults": dict(counted("faults")),
        "rollouts": dict(counted("rollouts")),
        "requests": sum(site["requests"]["sent"] for site in sites),
        "requests_lost": lost["other"],
        "requests_that_died_with": {kind: lost[kind] for kind in MAY_COST},
        "orphans": len(joined("orphans")),
        "audit_rows": sum(audit["rows"] for audit in audits),
        "audit_rows_lost": missing,
        "approvals": sum(audit["approvals"] for audit in audits),
        "back_s": {"median": median(back), "most": max(back), "restarts": len(back)} if back else {},
        "back_cpu_s": cpu and {"median": median(cpu), "most": max(cpu)},
        "green_ended_s": joined("green_ended_s"),
        "wrong": joined("wrong"),
    }
    is_slow = bool(back) and max(back) >= SLOW_S
    return {**total, "whole": not (lost["other"] or total["orphans"] or missing or total["wrong"] or is_slow)}


if __name__ == "__main__":
    sys.exit(main())

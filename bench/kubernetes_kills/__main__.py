"""Kills of the daemon in each phase of rollouts on Kubernetes; reports lost requests, records and leftovers.

python -m bench.kubernetes_kills [--traffic gateway] [--times N] [--targets N] [--minutes N] runs a real etcd,
API server and controller-manager, Envoys, simulated servers and clients, and a daemon that is killed with
kill -9 at random moments until each phase had N kills. Exits 1 if a request was lost, a rollout did not end,
or anything was left over. Takes root, and `scripts/kubernetes install`.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.kills.books import rows
from bench.kubernetes_kills.kills import LASTS_S, Kill, Killer
from bench.kubernetes_kills.rollouts import Rollouts, play_rounds
from bench.kubernetes_kills.site import Site, running
from bench.kubernetes_kills.states import States
from bench.results import new_parser, write
from flettner.simulator.text import draws
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape, lengths
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY
from tests.support.rig import flettner

SHAPE = Shape(prompt=lengths("uniform:8:64"), output=lengths("uniform:20:150"))  # drains take time


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("bench.kubernetes_kills", __doc__, "kubernetes_kills.json")
    parser.add_argument("--traffic", choices=("envoy", "gateway"), default="envoy")
    parser.add_argument("--times", type=int, default=20, help="kills in each phase")
    parser.add_argument("--phases", nargs="+", choices=tuple(LASTS_S), default=tuple(LASTS_S))
    parser.add_argument("--targets", type=int, default=6)
    parser.add_argument("--streams", type=int, default=16, help="clients in a closed loop, over all targets")
    parser.add_argument("--minutes", type=float, default=35.0, help="no kill after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder of the daemon, and print it")
    options = parser.parse_args(argv)
    report = asyncio.run(play(options))
    write(options.json, report)
    print(table(report))
    print(json.dumps({key: report[key] for key in report if key not in {"met", "by_phase"}}, indent=2))
    return 0 if report["whole"] else 1


async def play(options: argparse.Namespace) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="kk-"))
    names = tuple(f"t{place}" for place in range(1, options.targets + 1))
    try:
        with Cluster() as cluster:
            async with (
                Namespace(cluster, gpus=2 * len(names)) as here,
                running(here, home, names, options.traffic) as site,
            ):
                return await _play(site, options)
    finally:
        if options.keep:
            print(home)
        else:
            shutil.rmtree(home)


async def _play(site: Site, options: argparse.Namespace) -> dict[str, Any]:
    states, wrong = States(site.journal), list[str]()
    targets = [Rollouts(site=site, states=states, name=name, wrong=wrong) for name in site.names]
    killer = Killer(
        site=site,
        states=states,
        random=draws(options.seed, "kills"),
        times=options.times,
        phases=options.phases,
        wrong=wrong,
    )
    following = asyncio.create_task(states.follow())
    async with serving(site, options.streams, options.seed) as clients:
        stop = asyncio.Event()
        random = draws(options.seed, "rounds")
        working = asyncio.create_task(play_rounds(targets, killer, random, stop))
        await killer.run(options.minutes * 60)
        stop.set()
        await working
        left = await leftovers(site)
    following.cancel()
    await site.kill(signal.SIGTERM)
    report = {
        **summary(killer.made, targets, clients),
        "lacking": killer.lacking,
        "left_over": left,
        "audit": await audit(site),
        "handovers_failed": site.log().count("kubernetes.handover_failed"),
        "wrong": wrong,
        "met": [asdict(kill) for kill in killer.made],
    }
    whole = not (report["lost"] or left or wrong or killer.lacking or report["audit"]["exit"])
    return {"traffic": options.traffic, "whole": whole, **report}


@asynccontextmanager
async def serving(site: Site, streams: int, seed: int) -> AsyncIterator[Mapping[str, TrafficGenerator]]:
    """Run clients of every target; all requests have ended at the exit."""
    clients = {}
    async with AsyncExitStack() as undo:
        for place, name in enumerate(site.names):
            load = Load(streams=len(range(place, streams, len(site.names))))
            url = site.urls[name]
            clients[name] = TrafficGenerator(
                url, "tiny", load, shape=SHAPE, seed=seed + place, timeout_s=90.0
            )
            await clients[name].start()
            undo.push_async_callback(clients[name].stop)
        yield clients


async def leftovers(site: Site) -> list[str]:
    """List the objects that flettner left in the cluster, besides one server for each target."""
    left = []
    for name, replicas in (await site.deployments()).items():
        if name not in {*site.names, PROXY} or not replicas:
            left.append(f"Deployment {name} with {replicas} replicas")
    services = [service["metadata"]["name"] for service in await site.here.list("services")]
    for name in site.names:
        own = [service for service in services if service.startswith(f"flettner-{name}-")]
        if len(own) != 1:
            left.append(f"Services of {name}: {own}")
    return left


async def audit(site: Site) -> dict[str, Any]:
    status, output = await flettner("audit", "verify", "--state-dir", str(site.state_dir))
    return {"exit": status, "said": output.strip(), "rows": len(rows(site.journal))}


def lost(clients: Mapping[str, TrafficGenerator]) -> list[dict[str, Any]]:
    return [
        {"target": name, **asdict(record)}
        for name, traffic in clients.items()
        for record in traffic.tally.records
        if record.outcome != "ok"
    ]


def by_phase(kills: Sequence[Kill], outcomes: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return how often each phase was killed, and how the rollouts ended."""
    counts: dict[str, dict[str, Any]] = {}
    for phase in (*LASTS_S, "replacing"):
        met = [kill.phases[target] for kill in kills for target in kill.phases]
        rollouts = [rollout for killed_in, rollout in met if killed_in == phase]
        ends = Counter(outcomes.get(rollout, "unknown") for rollout in rollouts)
        counts[phase] = {"kills": len(rollouts), **ends}
    return counts


def summary(
    kills: Sequence[Kill], targets: Sequence[Rollouts], clients: Mapping[str, TrafficGenerator]
) -> dict[str, Any]:
    ready = [kill.ready_s for kill in kills if kill.ready_s is not None and not kill.other_pod]
    waited = [kill.ready_s for kill in kills if kill.ready_s is not None and kill.other_pod]
    return {
        "kills": len(kills),
        "rollouts": dict(sum((target.outcomes for target in targets), Counter[str]())),
        "requests": sum(traffic.tally.sent for traffic in clients.values()),
        "lost": lost(clients),
        "ready_s": {"median": median(ready), "most": max(ready)} if ready else {},
        "ready_in_another_pod_s": {"median": median(waited), "most": max(waited)} if waited else {},
        "by_phase": by_phase(kills, targets[0].states.outcomes),
    }


def table(report: Mapping[str, Any]) -> str:
    """Format the kills by phase as a Markdown table."""
    lines = ["| killed in | kills | promoted | rolled back |", "|---|---|---|---|"]
    lines += [
        f"| {phase} | {row['kills']} | {row.get('promoted', 0)} | {row.get('rolled_back', 0)} |"
        for phase, row in report["by_phase"].items()
        if row["kills"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

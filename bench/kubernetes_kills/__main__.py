"""Kills of the daemon in each phase of rollouts on Kubernetes; reports lost requests, records and leftovers.

python -m bench.kubernetes_kills [--traffic gateway] [--times N] [--targets N] [--minutes N] runs a real etcd,
API server and controller-manager, Envoys, simulated servers and clients, and a daemon that is killed with
kill -9 at random moments until each phase had N kills. Exits 1 if a request was lost, a rollout did not end,
or anything was left over. Takes root, and `scripts/kubernetes build`.
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
    found = asyncio.run(play(options))
    write(options.json, found)
    print(table(found))
    print(json.dumps({key: found[key] for key in found if key not in {"met", "by_phase"}}, indent=2))
    return 0 if found["whole"] else 1


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
    found = {
        **summary(killer.made, targets, clients),
        "lacking": killer.lacking,
        "left_over": left,
        "audit": await audit(site),
        "handovers_failed": site.log().count("kubernetes.handover_failed"),
        "wrong": wrong,
        "met": [asdict(one) for one in killer.made],
    }
    whole = not (found["lost"] or left or wrong or killer.lacking or found["audit"]["exit"])
    return {"traffic": options.traffic, "whole": whole, **found}


@asynccontextmanager
async def serving(site: Site, streams: int, seed: int) -> AsyncIterator[Mapping[str, TrafficGenerator]]:
    """Clients of every target; all requests have ended at the exit."""
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
    """What flettner left in the cluster beside one server for each target."""
    found = []
    for name, replicas in (await site.deployments()).items():
        if name not in {*site.names, PROXY} or not replicas:
            found.append(f"Deployment {name} with {replicas} replicas")
    services = [one["metadata"]["name"] for one in await site.here.list("services")]
    for name in site.names:
        own = [one for one in services if one.startswith(f"flettner-{name}-")]
        if len(own) != 1:
            found.append(f"Services of {name}: {own}")
    return found


async def audit(site: Site) -> dict[str, Any]:
    status, said = await flettner("audit", "verify", "--state-dir", str(site.state_dir))
    return {"exit": status, "said": said.strip(), "rows": len(rows(site.journal))}


def lost(clients: Mapping[str, TrafficGenerator]) -> list[dict[str, Any]]:
    return [
        {"target": name, **asdict(record)}
        for name, traffic in clients.items()
        for record in traffic.tally.records
        if record.outcome != "ok"
    ]


def by_phase(kills: Sequence[Kill], outcomes: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """How often each phase was killed, and how the rollouts ended."""
    found: dict[str, dict[str, Any]] = {}
    for phase in (*LASTS_S, "replacing"):
        met = [kill.phases[target] for kill in kills for target in kill.phases]
        rollouts = [rollout for one, rollout in met if one == phase]
        ends = Counter(outcomes.get(one, "unknown") for one in rollouts)
        found[phase] = {"kills": len(rollouts), **ends}
    return found


def summary(
    kills: Sequence[Kill], targets: Sequence[Rollouts], clients: Mapping[str, TrafficGenerator]
) -> dict[str, Any]:
    ready = [one.ready_s for one in kills if one.ready_s is not None and not one.other_pod]
    waited = [one.ready_s for one in kills if one.ready_s is not None and one.other_pod]
    return {
        "kills": len(kills),
        "rollouts": dict(sum((one.outcomes for one in targets), Counter[str]())),
        "requests": sum(traffic.tally.sent for traffic in clients.values()),
        "lost": lost(clients),
        "ready_s": {"median": median(ready), "most": max(ready)} if ready else {},
        "ready_in_another_pod_s": {"median": median(waited), "most": max(waited)} if waited else {},
        "by_phase": by_phase(kills, targets[0].states.outcomes),
    }


def table(found: Mapping[str, Any]) -> str:
    """In Markdown."""
    lines = ["| killed in | kills | promoted | rolled back |", "|---|---|---|---|"]
    lines += [
        f"| {phase} | {one['kills']} | {one.get('promoted', 0)} | {one.get('rolled_back', 0)} |"
        for phase, one in found["by_phase"].items()
        if one["kills"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The accounting of a run: requests, records, leftovers, and a table by phase."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from bench.kubernetes_kills.kills import LASTS_S, Kill
from bench.kubernetes_kills.rollouts import Rollouts
from bench.kubernetes_kills.site import Site
from flettner.agent.audit import segments
from flettner.simulator.traffic import TrafficGenerator
from tests.support.kubernetes.proxy import PROXY
from tests.support.rig import flettner


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
    rows = sum(len(file.read().splitlines()) for _, file, _ in segments.open_files(site.journal))
    return {"exit": status, "said": said.strip(), "rows": rows}


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

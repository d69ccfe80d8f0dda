"""The history of a seed on Kubernetes: what the cluster is like, and the faults."""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from tests.simulation.kubernetes.network import AWAY, SLOW, STALLED, THROTTLED
from tests.simulation.scenario import GREENS, WORDS, Act, Scenario, drawn

READ = ("refused", "late", "throttled", "error", "crash before", "crash after")
WRITE = (*READ, "reply lost", "conflict")
EFFECTS = ("launch", "warm_up", "retire", "stop")
POINTS = {
    "read": READ,
    "write": WRITE,
    **dict.fromkeys(EFFECTS, ("crash before", "crash after")),
    "route": ("refused", "reply lost", "late", "crash after"),
    "drain": ("refused", "late"),
}
OF_API = (AWAY, SLOW, THROTTLED, STALLED, "watches cut", "history compacted")
OF_DAEMON = (
    "daemon killed",
    "daemon killed twice",
    "daemon paused",
    "daemon paused and replaced",
    "daemon dead for long",
    "daemon restarted in advise mode",
    "clock forward",
    "clock back",
    "proxy restarts",
    "metrics stale",
    "records missing",
    "weights changed by hand",
    *(f"operator {word}" for word in WORDS),
)
OF_PODS = (
    "pod evicted",
    "pod deleted by hand",
    "out of memory",
    "node lost",
    "old server hangs",
    "old server exits",
    "new server hangs",
    "new server exits",
    "new server errs",
)
OF_PEOPLE = (
    "flags edited by hand",
    "label added by hand",
    "deployment scaled to 0 by hand",
    "deployment deleted by hand",
    "deployment paused by hand",
    "green deleted by hand",
    "service deleted by hand",
    "autoscaler scales up",
    "pipeline applies the manifest",
)
LOAD = "load returns"
SAVES = 0.2  # of the targets with several pods
TIMED = (LOAD, *OF_API, *OF_DAEMON, *OF_PODS, *OF_PEOPLE)
KINDS = (*(f"{on}: {how}" for on, hows in POINTS.items() for how in hows), *TIMED)
_NTH = {"read": 150, "write": 9, "route": 4, "drain": 4}
_PHASES = ("launching", "warming", "canary", "promoting", "promoting", "promoting", "rolling_back")
FIRST_S, LAST_S = 45.0, 215.0
Writer = Literal["", "Argo CD", "KServe"]
WRITERS: tuple[Writer, ...] = ("Argo CD", "KServe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScenario(Scenario):
    """`replicas`: pods of each Deployment. `spare`: whether nodes have room for green."""

    ours: bool = False
    replicas: int = 1
    spare: bool = True
    boots_s: tuple[float, float] = (4.0, 40.0)  # as long as names are cached, or longer
    rate: int = 5  # requests a second
    writer: Writer = ""  # its mark is on the Deployment, and it reverts each change


def scenario_of(seed: int) -> ClusterScenario:
    """The history of this seed."""
    random = drawn("kubernetes", seed)
    acts = tuple(_act(random) for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 6))))
    swap = random.random() < 0.15
    scenario = ClusterScenario(
        seed=seed,
        servers=1 if swap else random.choice((1, 1, 1, 2)),
        strategy="swap" if swap else "surge",
        green=random.choice(("good", "good", *GREENS)),
        mode=random.choice(("approve", "approve", "auto")),
        exam=random.random() < 0.1,
        impatient=random.random() < 0.4,
        several=random.random() < 0.3,
        replicas=random.choice((1, 1, 2)),
        spare=not swap and random.random() < 0.85,
        rate=random.choice((1, 5, 5)),
        writer=random.choice(WRITERS) if random.random() < 0.05 else "",
        acts=acts,
    )
    random = drawn("save", seed)
    if scenario.servers * scenario.replicas == 1 or scenario.writer or random.random() >= SAVES:
        return scenario
    returns = Act(what=LOAD, at_s=round(random.uniform(90.0, 190.0), 1), lasts_s=60.0)
    return replace(scenario, strategy="save", rate=5, acts=(*acts, returns))


def _act(random: Random) -> Act:
    lasts_s = round(random.choice((3.0, 10.0, 30.0, 90.0)) * random.uniform(0.5, 1.5), 1)
    start = int(random.random() < 0.05)
    if random.random() < 0.35:
        on = random.choice(("read", "write", "write", "write", *POINTS))
        nth = random.randint(1, _NTH.get(on, 2))
        return Act(what=random.choice(POINTS[on]), on=on, nth=nth, start=start, lasts_s=lasts_s)
    what = random.choice(random.choice((OF_API, OF_DAEMON, OF_PODS, OF_PEOPLE)))
    if random.random() < 0.6:
        return Act(what=what, on=f"phase {random.choice(_PHASES)}", lasts_s=lasts_s)
    return Act(what=what, at_s=round(random.uniform(FIRST_S, LAST_S), 1), lasts_s=lasts_s)

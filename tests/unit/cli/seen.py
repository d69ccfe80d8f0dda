"""A daemon of several targets with data for every field of `flettner top`."""

from dataclasses import replace

from flettner.agent.domain.effects import Route
from flettner.agent.domain.error_budget import SLOT_S, Budget
from flettner.agent.domain.fleet import Fleet, Split
from flettner.agent.domain.model import Objective, Server, Slo
from flettner.agent.domain.reading import Latency, Reading, SourceState
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from tests.support.fake_daemon_view import NOON, PLAN, FakeDaemonView, steady
from tests.support.suggestions import approved

SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), errors=0.99)
NOW = int(NOON.timestamp()) // SLOT_S
NOTE = "paused by 田中: the queue of 待ち行列 is looked at, and nothing starts until that is done"
LOST = "no such command: nvidia-smi"


def reading(name: str, *, kv: float, queue: float, preempted: float, ttft_s: float) -> Reading:
    return Reading(
        at=NOON,
        server=f"{name}-r0",
        span_s=60,
        coverage=1.0,
        running=steady(48),
        waiting=steady(queue),
        kv_usage=steady(kv),
        preemptions_per_s=steady(preempted),
        ttft=Latency(count=480, p50=0.1, p95=ttft_s, p99=2 * ttft_s),
        requests={"ok": 720, "failed": 6},
        goodput_rps=11.25,
    )


class ThreeTargets(FakeDaemonView):
    """`chat` in a canary; `embeddings-eu` unhealthy and paused; `idle` without data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        blue = Server(name="chat-r0", address="127.0.0.1:8101", setting={})
        green = Server(name="chat-r1", address="127.0.0.1:8102", setting={})
        weights = {blue.name: 75, green.name: 25}
        route = Route(number=1, servers=(blue, green), weights=weights, fallback=blue.name)
        rollout = Canary(
            id="chat-o1",
            suggestion=approved(),
            server=green.name,
            greens=(green,),
            replicas={blue.name: 1},
            plan=PLAN,
            started_at=NOON,
            phase_since=NOON,
        )
        spent = Budget(slots=((NOW - 20, 4000, 8, 100, 0, 0), (NOW, 1000, 1, 25, 0, 0)))
        worse = Budget(slots=((NOW - 20, 4000, 8, 100, 0, 0), (NOW, 1000, 144, 0, 0, 0)))
        self.set(
            State(
                target="chat",
                phase=Phase.CANARY,
                fleet=Fleet(servers=(blue,)),
                split=Split(route=route),
                rollout=rollout,
                budget=spent,
            )
        )
        self.set(State(target="embeddings-eu", paused=True, budget=worse, note=NOTE))
        self.set(State(target="idle"))
        busy = reading("embeddings-eu", kv=0.998, queue=1280, preempted=2.5, ttft_s=12.5)
        targets = self.targets()
        targets["chat"].reading = reading("chat", kv=0.87, queue=3.25, preempted=0.04, ttft_s=0.42)
        targets["embeddings-eu"].reading = replace(busy, goodput_rps=0.5)
        lost = SourceState(at=NOON, source="nvidia_smi", available=False, why=LOST)
        for name, target in targets.items():
            target.slo = SLO
            target.sources = {lost.source: lost} if name == "idle" else {}

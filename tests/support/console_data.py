"""A daemon with many targets and a day of history, a suggestion, a rollout, a model and a chained audit."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from flettner.agent.audit.history import Point
from flettner.agent.audit.records import GENESIS, Actor, JournalEntry, encode_line
from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.canary_evidence import (
    CanaryEvidence,
    Counts,
    EProcessPair,
    EvidenceStream,
    GainBeside,
    Goodput,
)
from flettner.agent.domain.effects import Route
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import (
    Evidence,
    Forecast,
    Objective,
    Outcome,
    Plan,
    PreflightResult,
    Server,
    Slo,
    Step,
)
from flettner.agent.domain.prediction_check import PredictionCheck
from flettner.agent.domain.reading import Gpu, Latency, Reading, Request, RequestOutcome, SourceState, Trend
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion, Suggestions
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.performance_model.band import Band
from flettner.vllm_facts.values import Value
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.support.learned import learned_model

SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), itl=Objective(under_s=0.06, share=0.95))
FLAGS: dict[str, Value] = {
    "model": "Qwen/Qwen3-8B",
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": True,
    "max_model_len": 16384,
}
PLAN = Plan(
    steps=(
        Step(weight=5, requests=20, at_least_s=30, at_most_s=600),
        Step(weight=50, requests=100, at_least_s=60, at_most_s=2700),
        Step(weight=100, requests=200, at_least_s=1800, at_most_s=7200),
    ),
    start_s=900,
    warm_up_requests=20,
    warm_up_s=300,
    drain_s=120,
    lease_s=15,
)
NAMES = (
    "chat",
    "code",
    "embed-docs",
    "summarise",
    "translate",
    "vision",
    "rerank",
    "agents",
    "batch",
    "search",
)


@dataclass
class Scene(FakeDaemonView):
    """Its audit is a real chain."""

    curves: dict[str, Sequence[Point]] = field(default_factory=dict)

    def points(self, rollout: str) -> Sequence[Point]:
        return self.curves.get(rollout, ())

    def record(self, event: str, actor: str = "") -> None:
        """As in FakeDaemonView, but chained."""
        who = (
            Actor(kind="person", id=actor, role="operator") if actor else Actor(kind="daemon", id="flettner")
        )
        state = self.targets()[self.target].state
        self.write(
            JournalEntry(
                at=self.at, actor=who, action=f"daemon.{event.lower()}", target=self.target, why=state.note
            )
        )

    def write(self, entry: JournalEntry) -> None:
        prev = str(self._records[-1]["hash"]) if self._records else GENESIS
        line = encode_line(entry, seq=len(self._records) + 1, prev=prev, boot_id="boot", host="gpu-1")
        record = json.loads(line)
        self._records.append(record)
        for queue in self._followers:
            queue.put_nowait(record)


def scenery(*, targets: int = 1, hours: float = 24, at: datetime = NOON) -> Scene:
    """Build a daemon whose first target has an open suggestion, and whose second target runs a rollout."""
    daemon = Scene(at=at)
    since = at - timedelta(hours=5)
    up = SourceState(at=since, source="vllm_metrics chat-r0", available=True)
    lost = SourceState(at=since, source="nvidia_smi", available=False, why="nvidia-smi: no such command")
    for number in range(targets):
        name = NAMES[number] if number < len(NAMES) else f"{NAMES[number % 10]}-{number // 10}"
        address, replicas = f"127.0.0.1:{8101 + number}", 4 if number == 1 else 1
        blue = Server(name=f"{name}-r0", address=address, setting=FLAGS, ours=number > 2, replicas=replicas)
        state = State(target=name, mode="approve", fleet=Fleet(servers=(blue,)), outcomes=_outcomes(at))
        daemon.set(state)
        target = daemon.targets()[name]
        target.slo, target.sources = SLO, {up.source: up, lost.source: lost}
        target.reading = _reading(name, at, number)
        target.minutes = day(hours=hours, at=at, seed=number)
    daemon.targets()["chat"].model = learned_model(1.0, max_num_seqs=8)
    chat = daemon.targets()["chat"].state
    daemon.set(replace(chat, predictions=(_checked(at, "chat-o1", 0.041), _checked(at, "chat-o2", 0.062))))
    _write_a_day(daemon)
    suggest(daemon)
    if targets > 1:
        roll(daemon, "code")
    if targets > 3:
        halted = daemon.targets()["summarise"].state
        why = "an operator must look: blue was lost and could not be restored within 15 min"
        daemon.set(replace(halted, phase=Phase.HALTED, note=why))
    return daemon


def suggest(daemon: Scene) -> Suggestion:
    """Add a suggestion as the admission policy makes it."""
    why = "11.2 requests wait on average while only 38 % of the KV cache is used: sequences are what is short"
    daemon.suggest({"max_num_seqs": 128}, why=why, policy="admission")
    state = daemon.targets()["chat"].state
    made = state.suggestions.open[0]
    proposal = replace(
        made.proposal,
        expects="TTFT p95 falls from 1.9 s to about 0.6 s; goodput rises by a third",
        risks="ITL rises by up to 15 %; preemptions begin when the KV cache is above 90 %",
        source="https://docs.vllm.ai/en/latest/configuration/optimization/",
        mitigation=True,
        evidence=(
            Evidence(metric="waiting", value=11.2, unit="requests", window_s=30),
            Evidence(metric="running", value=64.0, unit="requests", window_s=30),
            Evidence(metric="kv_usage", value=0.38, unit="ratio", window_s=30),
            Evidence(metric="ttft_p95", value=1.94, unit="s", window_s=30),
        ),
    )
    preflight = PreflightResult(
        why="two GPUs are free", start_s=95.0, notes=("warm start: weights and graphs are in the cache",)
    )
    forecast = Forecast(rate_rps=7.4, usual_s=260, likely_s=540, hold_s=1800)
    notes = ("asked for 256; the bound's step allows one doubling at a time", *preflight.notes)
    made = replace(made, proposal=proposal, preflight=preflight, plan=PLAN, forecast=forecast, notes=notes)
    daemon.set(replace(state, suggestions=Suggestions(open=(made,)), note="waits for an approval"))
    return made


def roll(daemon: Scene, name: str) -> Canary:
    """Begin a rollout that is at load parity, some minutes on, after an earlier one that was rolled back."""
    state, at = daemon.targets()[name].state, daemon.at
    assert state.fleet.blue is not None
    green = Server(name=f"{name}-r1", address="127.0.0.1:8190", setting={**FLAGS, "max_num_seqs": 128})
    other = daemon._suggestions["chat-s1"]
    made = replace(other, id=f"{name}-s4", target=name, status="approved", decided_by="alice")
    rollout = _canary(f"{name}-o3", made, green, state.fleet.blue.name, at)
    route = Route(
        number=7,
        servers=(state.fleet.blue, green),
        weights={state.fleet.blue.name: 50, green.name: 50},
        fallback=state.fleet.blue.name,
    )
    daemon.targets()[name].logs[green.name] = tuple(
        f"INFO 11-20 11:52:{s:02} [core.py:127] {s}" for s in range(30)
    )
    daemon._suggestions[made.id] = made
    daemon.set(
        replace(
            state,
            phase=Phase.CANARY,
            rollout=rollout,
            split=replace(state.split, route=route),
            note="not proved yet that itl is not worse: 19 of 640 bad on green, 22 of 1210 on blue",
        )
    )
    daemon.curves[rollout.id] = [_point(at, tick) for tick in range(240)]
    ended = replace(rollout, id=f"{name}-o2", outcome="rolled_back", ended_at=at - timedelta(hours=7))
    why = "green is worse: ttft: 61 of 400 bad on green, 29 of 410 on blue"
    ended = replace(ended, started_at=at - timedelta(hours=7, minutes=12), why=why, bad=61)
    daemon._rollouts = {ended.id: (name, ended), **daemon._rollouts}
    return rollout


def _canary(rollout: str, suggestion: Suggestion, green: Server, blue: str, at: datetime) -> Canary:
    random = Random(5)  # noqa: S311 - the same numbers each time
    streams = (
        _stream("errors", None, (1210, 2, 640, 1), good=math.log(41), worse=math.log(0.05)),
        _stream("ttft", 0.5, (1210, 71, 640, 25), good=math.log(9.3), worse=math.log(0.02)),
        _stream("itl", 0.06, (1210, 22, 640, 19), good=math.log(1.4), worse=math.log(3.1)),
    )
    return Canary(
        id=rollout,
        suggestion=suggestion,
        server=green.name,
        greens=(green,),
        replicas={blue: 1},
        plan=PLAN,
        started_at=at - timedelta(minutes=9),
        phase_since=at - timedelta(minutes=4),
        step=1,
        step_since=at - timedelta(minutes=4),
        evidence=CanaryEvidence(
            streams=streams,
            valid_s=231.0,
            at=at,
            better="better: green missed 4 of 640, blue 300 of 1,210",
            goodput=Goodput(
                beside=GainBeside(of_blue=EProcessPair(log_above=20.0)),
                counted=Counts(green=640, green_bad=4, control=1210, control_bad=300),
            ),
        ),
        exposed=arm(random, 702, 0.28),
        bad=24,
        quality=AnswerComparison(
            ok=True,
            why="green answers like blue: 38 of 40 prompts word for word",
            prompts=40,
            same=38,
            same_blue=38.5,
            contradicted=0,
            contradicted_blue=0,
            drift=0.004,
            drift_blue=0.003,
        ),
        green_counts=arm(random, 640, 0.28),
        blue_counts=arm(random, 1210, 0.41),
        baseline=arm(random, 9800, 0.6),
    )


def _point(at: datetime, tick: int) -> Point:
    """The evidence of every second second of the canary."""
    return Point(
        at=at - timedelta(seconds=480 - 2 * tick),
        weight=5 if tick < 100 else 50,
        judged={
            "errors": (0.9 * 0.99**tick, min(60.0, 1.02 ** max(0, tick - 60))),
            "ttft": (0.8 * 0.98**tick, min(30.0, 1.015 ** max(0, tick - 100))),
            "itl": (1 + math.sin(tick / 20) ** 2 * 4, 1 + tick / 400),
        },
    )


def arm(random: Random, total: int, ttft_s: float) -> RequestCounts:
    def request(number: int) -> Request:
        outcome: RequestOutcome = "failed" if number % 640 == 7 else "ok"
        first_s = ttft_s * random.lognormvariate(-0.8, 0.6)
        return Request(
            server="s", outcome=outcome, status=200, duration_s=first_s + 4, ttft_s=first_s, tokens=100
        )

    return count_requests([request(number) for number in range(total)], SLO)


def day(*, hours: float, at: datetime, seed: int) -> list[MinuteRow]:
    """Return the load of a working day, with an overload in the afternoon."""
    end = int(at.timestamp()) // 60 * 60
    random = Random(seed)  # noqa: S311
    minutes, noise = [], 0.0
    for number in range(int(hours * 60)):
        when = end - 60 * (int(hours * 60) - number)
        noise = 0.9 * noise + random.gauss(0, 0.25)
        rate = max(0.2, 5 + seed % 4 + 3 * math.sin(when / 86400 * 2 * math.pi - 1.5) + noise)
        late = number > hours * 60 - 45 and seed == 0
        rate += 6 * late
        short = max(0.0, rate - 8.5 + noise / 2)
        good = max(0.0, rate - short * 1.6)
        minutes.append(
            MinuteRow(
                at=when,
                requests_rps=round(rate, 3),
                goodput_rps=round(good, 3),
                attainment=round(good / rate, 4),
                ttft_p95_s=round(0.25 + 0.26 * short + random.random() * 0.05, 4),
                itl_p95_s=round(0.035 + rate / 900 + random.random() * 0.004, 5),
                running=round(min(64.0, rate * 7.4), 2),
                waiting=round(short * 1.8, 2),
                kv_usage=round(min(0.97, 0.027 * rate), 4),
                preemptions_per_s=round(max(0.0, short - 1) / 20, 4),
                gpu_utilization=round(min(1.0, 0.3 + rate / 14), 3),
                gpu_memory=0.91,
            )
        )
    return minutes


def _reading(name: str, at: datetime, number: int) -> Reading:
    waits = 11.2 if number == 0 else number % 3 * 0.7
    return Reading(
        at=at,
        server=f"{name}-r0",
        span_s=30,
        coverage=1.0,
        running=Trend(mean=63.6 - number, low=55, high=64, early=62, late=64),
        waiting=Trend(mean=waits, low=0, high=waits * 2, early=waits, late=waits),
        kv_usage=Trend(mean=0.38, low=0.3, high=0.45, early=0.36, late=0.39),
        preemptions_per_s=Trend(mean=0, low=0, high=0, early=0, late=0),
        ttft=Latency(count=480, p50=0.1, p95=1.94 if number == 0 else 0.31, p99=2.9, over_slo=0.2),
        itl=Latency(count=480, p50=0.03, p95=0.041, p99=0.06, over_slo=0.01),
        requests={"ok": 222},
        goodput_rps=5.61 + number / 3,
        gpus=(
            Gpu(
                index=0,
                uuid="GPU-0",
                name="NVIDIA H100",
                utilization=0.86,
                memory_used_mib=74240,
                memory_total_mib=81559,
                temperature_c=64,
            ),
        ),
    )


def _outcomes(at: datetime) -> tuple[Outcome, ...]:
    return (
        Outcome(
            at=at - timedelta(hours=20),
            result="promoted",
            before={"max_num_seqs": 32},
            to={"max_num_seqs": 64},
            why="green is not worse after 312 requests in 90 s, and TTFT p95 is 41 % lower",
        ),
        Outcome(
            at=at - timedelta(hours=7),
            result="rolled_back",
            before={"max_num_batched_tokens": 8192},
            to={"max_num_batched_tokens": 16384},
            why="green is worse: ttft: 61 of 400 bad on green, 29 of 410 on blue",
        ),
    )


def _checked(at: datetime, rollout: str, itl_s: float) -> PredictionCheck:
    return PredictionCheck(
        at=at - timedelta(hours=7),
        rollout=rollout,
        to={"max_num_seqs": 64},
        requests=2210,
        predicted={
            "attainment": Band(value=0.97, low=0.95, high=0.985),
            "ttft_p90_s": Band(value=0.31, low=0.24, high=0.38),
            "itl_p90_s": Band(value=0.04, low=0.036, high=0.045),
        },
        measured={"attainment": 0.966, "ttft_p90_s": 0.27, "itl_p90_s": itl_s},
    )


def _stream(
    name: str, edge_s: float | None, counted: tuple[int, int, int, int], *, good: float, worse: float
) -> EvidenceStream:
    lens = EProcessPair(log_above=worse, most_below=good)
    return EvidenceStream(name=name, edge_s=edge_s, margin=0.01, requests=lens, counted=Counts(*counted))


def _write_a_day(daemon: Scene) -> None:
    """A day's entries."""
    story = (
        ("daemon", "flettner", "daemon.started", "epoch 12"),
        ("policy", "admission", "suggestion.made", "9.8 requests wait on average"),
        ("person", "alice", "suggestion.approved", "approved by alice"),
        ("daemon", "flettner", "server.launching", "starting chat-r1"),
        ("daemon", "flettner", "rollout.canary_started", "5 % of the traffic on green"),
        ("daemon", "flettner", "rollout.advanced", "green is not worse after 42 requests in 31 s"),
        ("daemon", "flettner", "rollout.promoted", "green is not worse, and TTFT p95 is 41 % lower"),
        ("person", "bob", "rollout.aborted", "customer complains of slow answers"),
        ("daemon", "flettner", "rollout.rolled_back", "rolled back by bob"),
    )
    for number in range(63):
        kind, who, action, why = story[number % len(story)]
        actor = Actor(kind=kind, id=who)  # type: ignore[arg-type]
        when = daemon.at - timedelta(minutes=7 * (63 - number))
        seen = (Evidence(metric="waiting", value=9.8, unit="requests", window_s=30),)
        name = NAMES[number // 9 % 2]
        target = daemon.targets().get(name)
        daemon.write(
            JournalEntry(
                at=when,
                actor=actor,
                action=action,
                target=name,
                why=why,
                evidence=seen,
                state=target.state if target else None,
                epoch=12,
            )
        )

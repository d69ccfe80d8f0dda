"""Rollouts with the real daemon, real Envoy, and simulated or real vLLM processes."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.rollouts.cases import EQUAL
from flettner.agent.audit.records import JournalRecord
from flettner.simulator.traffic import Load
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.real_vllm import ENVIRONMENT, real_vllm
from tests.support.rig import Document, Rig, lost, until

SEQS = "max_num_seqs"
LEARNED_S = 330.0  # time to calibrate the servers
VERDICTS = ("rollout.rolling_back", "rollout.promoting")


@dataclass(frozen=True, kw_only=True)
class VllmConfig(SiteConfig):
    """vLLM on the CPU with a tiny model; a start takes minutes."""

    seqs: int = 16

    def engine(self) -> str:
        command = json.dumps(real_vllm().command("--max-num-seqs", str(self.seqs), "--host", "127.0.0.1"))
        environment = "".join(f"{key} = {json.dumps(value)}\n" for key, value in ENVIRONMENT.items())
        return f"""
            kind = "process"
            command = {command}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            stop_s = 30.0
            [targets.engine.env]
            {environment}
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RealCase:
    """`to`: the knob and its value for green; `fault`: fault of the simulator in green."""

    green: str
    to: tuple[str, int | str]
    load: Load
    site_config: SiteConfig
    fault: str = ""
    watched_s: float = 20.0  # before the change request


@dataclass(frozen=True, slots=True, kw_only=True)
class RealOutcome:
    """Times in seconds; `verdict_s`: since the first share of green. `clients`: request outcomes."""

    green: str
    result: str
    why: str
    engine: str = ""
    outcome: str = ""
    weight: int = 0
    verdict_s: float | None = None
    back_s: float | None = None  # from the verdict to the split with all traffic on blue
    launches: int = 0
    exposed: int = 0
    bad_exposed: int = 0
    seconds: float = 0.0
    clients: dict[str, int] = field(default_factory=dict)


RATE = Load(rate=8.0)
SIMULATED = SiteConfig(
    steps=((5, 5, 5.0), (50, 50, 10.0)),
    at_most_s=900.0,
    hold_s=20.0,
    margin=0.02,
    start_s=60.0,
    warm_up_s=60.0,
    warm_up_requests=0,
)
CPU = VllmConfig(
    steps=((5, 3, 5.0), (50, 20, 15.0)),
    at_most_s=600.0,
    hold_s=30.0,
    margin=0.1,
    start_s=900.0,
    warm_up_s=300.0,
    ttft="3s",
    stalled_after_s=10.0,
    drain_s=300.0,
)
SIMULATED_EQUAL = RealCase(green=EQUAL.name, to=(SEQS, 9), load=RATE, site_config=SIMULATED)


def _bad(green: str, fault: str, **changes: Any) -> RealCase:  # noqa: ANN401 - fields of the case
    return replace(SIMULATED_EQUAL, green=green, fault=fault, **changes)


SIMULATED_BAD = (
    _bad("slow prefill", "slow_prefill=20"),
    _bad("slow decode", "slow_decode=6"),
    _bad("2 % errors", "errors=0.02", site_config=replace(SIMULATED, margin=0.01), watched_s=LEARNED_S),
    _bad("5 % truncated", "truncate=0.05"),
    _bad("stalls of 15 s", "stall=15"),
    _bad("wedge", "hang_after=20"),
    _bad("abort with 200", "abort=0.05"),
    _bad("slow under load", "slow_above=2"),
    _bad("slow in the hold-back", "slow_after=150", site_config=replace(SIMULATED, hold_s=180.0)),
    _bad("wrong outputs", "wrong=0.3", to=("kv_cache_dtype", "fp8_e5m2")),
)


def draw_cases(engine: str, equal: int, bad: int) -> Iterator[RealCase]:
    if engine == "vllm":
        single = RealCase(green="one sequence", to=(SEQS, 1), load=Load(streams=8), site_config=CPU)
        yield from [single][:bad]
        yield from (replace(single, green=EQUAL.name, to=(SEQS, 17 + number)) for number in range(equal))
        return
    yield from SIMULATED_BAD[:bad]
    yield from [SIMULATED_EQUAL] * equal


def play(case: RealCase) -> RealOutcome:
    with tempfile.TemporaryDirectory(prefix="rollout-") as home:
        return asyncio.run(_play(case, Path(home)))


async def _play(case: RealCase, home: Path) -> RealOutcome:
    knob, value = case.to
    faults = (f"{knob}={value}:{case.fault}",) if case.fault else ()
    rig = Rig(home=home, site_config=replace(case.site_config, faults=faults, octaves=5.0), patience_s=3600.0)
    clock = asyncio.get_running_loop().time
    began_s = clock()
    try:
        rig.prepare()
        await rig.start()
        await until(rig.target, _has_server, "the first server", case.site_config.start_s)
        await rig.serving()
        async with rig.clients(load=case.load, timeout_s=60.0) as traffic:
            await asyncio.sleep(case.watched_s)
            await rig.switch(**{knob: value})
        await asyncio.sleep(2.0)
        outcome = _summarise(case, await rig.rollout(), await rig.target(), rig.audit())
        counts = {**traffic.tally.counts(), "lost": len(lost(traffic))}
        return replace(outcome, seconds=round(clock() - began_s, 1), clients=counts)
    finally:
        await rig.tear_down()


def _has_server(target: Document) -> bool:
    return bool(target) and target["phase"] == "observing" and bool(target["servers"])


def _summarise(
    case: RealCase, rollout: Document, target: Document, audit: list[JournalRecord]
) -> RealOutcome:
    entries = [entry for entry in audit if entry["op_id"] == rollout["id"]]
    began = next((entry for entry in entries if entry["action"] == "rollout.canary_started"), None)
    verdict = next((entry for entry in entries if entry["action"] in VERDICTS), None)
    after = entries[entries.index(verdict) :] if verdict else []
    back = next((entry for entry in after if entry["action"] == "traffic.routed"), None)
    return RealOutcome(
        green=case.green,
        engine="vllm" if isinstance(case.site_config, VllmConfig) else "sim",
        outcome=rollout["outcome"],
        result=target["outcomes"][-1]["result"],
        why=rollout["why"],
        weight=rollout["plan"]["steps"][rollout["step"]]["weight"],
        verdict_s=_between(began, verdict),
        back_s=_between(verdict, back),
        launches=sum(effect.get("kind") == "launch" for entry in after for effect in entry["effects"]),
        exposed=rollout["exposed"]["total"],
        bad_exposed=rollout["bad_exposed"],
    )


def _between(earlier: JournalRecord | None, later: JournalRecord | None) -> float | None:
    if earlier is None or later is None:
        return None
    since, at = (datetime.fromisoformat(entry["ts"]) for entry in (earlier, later))
    return round((at - since).total_seconds(), 1)


def line(outcome: RealOutcome) -> str:
    return (
        f"{outcome.engine:<4} {outcome.green:<22} {outcome.result:<12} {outcome.weight:>3}% "
        f"{outcome.verdict_s or 0:>7.1f} {outcome.back_s or 0:>5.1f} {outcome.exposed:>6} "
        f"{outcome.bad_exposed:>5}  {outcome.why[:120]}"
    )

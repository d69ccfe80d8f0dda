"""Rollouts with the real daemon, real Envoy, and simulated or real vLLM processes."""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

from flettner.agent.audit.records import JournalRecord
from flettner.simulator.traffic import Load
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.real_vllm import ENVIRONMENT, real_vllm
from tests.support.rig import Document, Rig, lost, until

EQUAL, SEQS = "equal", "max_num_seqs"
LEARNED_S = 330.0  # time to calibrate the servers
VERDICTS = ("rollout.rolling_back", "rollout.promoting")


@dataclass(frozen=True, kw_only=True)
class OfVllm(SiteConfig):
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
class Case:
    """`to`: the knob and its value for green; `fault`: fault of the simulator in green."""

    green: str
    to: tuple[str, int | str]
    load: Load
    site_config: SiteConfig
    fault: str = ""
    watched_s: float = 20.0  # before the change request


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Times in seconds; `verdict_s`: since the first share of green. `clients`: request outcomes."""

    green: str
    engine: str
    outcome: str
    result: str
    why: str
    weight: int
    verdict_s: float | None
    back_s: float | None  # from the verdict to the split with all traffic on blue
    launches: int
    exposed: int
    bad_exposed: int
    seconds: float
    clients: dict[str, int] = field(default_factory=dict)


SIMULATED = SiteConfig(
    steps=((5, 5, 5.0), (50, 50, 10.0)),
    at_most_s=900.0,
    hold_s=20.0,
    margin=0.02,
    start_s=60.0,
    warm_up_s=60.0,
    warm_up_requests=0,
)
BAD = {
    "slow prefill": "slow_prefill=20",
    "slow decode": "slow_decode=6",
    "2 % errors": "errors=0.02",
    "5 % truncated": "truncate=0.05",
    "stalls of 15 s": "stall=15",
    "wedge": "hang_after=20",
    "abort with 200": "abort=0.05",
    "slow under load": "slow_above=2",
    "slow in the hold-back": "slow_after=150",
    "wrong outputs": "wrong=0.3",
}
"""Kinds of bad green, and their faults."""

RATE = Load(rate=8.0)
CPU = OfVllm(
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


def cases(engine: str, equal: int, bad: int) -> Iterator[Case]:
    if engine == "vllm":
        few = Load(streams=8)
        one = Case(green="one sequence", to=(SEQS, 1), load=few, site_config=CPU)
        yield from (one for _ in range(min(bad, 1)))
        yield from (Case(green=EQUAL, to=(SEQS, 17 + n), load=few, site_config=CPU) for n in range(equal))
        return
    for name, fault in list(BAD.items())[:bad]:
        site_config = replace(SIMULATED, margin=0.01) if name == "2 % errors" else SIMULATED
        site_config = replace(site_config, hold_s=180.0) if name == "slow in the hold-back" else site_config
        to = ("kv_cache_dtype", "fp8_e5m2") if name == "wrong outputs" else (SEQS, 9)
        watched_s = LEARNED_S if name == "2 % errors" else 20.0
        yield Case(green=name, to=to, load=RATE, site_config=site_config, fault=fault, watched_s=watched_s)
    yield from (Case(green=EQUAL, to=(SEQS, 9), load=RATE, site_config=SIMULATED) for _ in range(equal))


def tell(case: Case) -> Told:
    with tempfile.TemporaryDirectory(prefix="rollout-") as home:
        return asyncio.run(_tell(case, Path(home)))


async def _tell(case: Case, home: Path) -> Told:
    knob, value = case.to
    faults = (f"{knob}={value}:{case.fault}",) if case.fault else ()
    rig = Rig(home=home, site_config=replace(case.site_config, faults=faults, octaves=5.0), patience_s=3600.0)
    began_s = asyncio.get_running_loop().time()
    try:
        rig.prepare()
        await rig.start()
        await until(rig.target, _has_server, "the first server", case.site_config.start_s)
        await rig.serving()
        async with rig.clients(load=case.load, timeout_s=60.0) as traffic:
            await asyncio.sleep(case.watched_s)
            one = await rig.switch(**{knob: value})
        await asyncio.sleep(2.0)
        one = await rig.rollout()
        target = await rig.target()
        seconds = asyncio.get_running_loop().time() - began_s
        counts = {**traffic.tally.counts(), "lost": len(lost(traffic))}
        return _told(case, one, target, rig.audit(), seconds, counts)
    finally:
        await rig.tear_down()


def _has_server(target: Document) -> bool:
    return bool(target) and target["phase"] == "observing" and bool(target["servers"])


def _told(
    case: Case,
    one: Document,
    target: Document,
    audit: Sequence[JournalRecord],
    seconds: float,
    clients: dict[str, int],
) -> Told:
    own = [entry for entry in audit if entry["op_id"] == one["id"]]
    began = next((entry for entry in own if entry["action"] == "rollout.canary_started"), None)
    verdict = next((entry for entry in own if entry["action"] in VERDICTS), None)
    after = own[own.index(verdict) :] if verdict else []
    back = next((entry for entry in after if entry["action"] == "traffic.routed"), None)
    launches = sum(effect.get("kind") == "launch" for entry in after for effect in entry["effects"])
    return Told(
        green=case.green,
        engine="vllm" if isinstance(case.site_config, OfVllm) else "sim",
        outcome=one["outcome"],
        result=target["outcomes"][-1]["result"],
        why=one["why"],
        weight=one["plan"]["steps"][one["step"]]["weight"],
        verdict_s=_between(began, verdict),
        back_s=_between(verdict, back),
        launches=launches,
        exposed=one["exposed"]["total"],
        bad_exposed=one["bad_exposed"],
        seconds=round(seconds, 1),
        clients=clients,
    )


def _between(one: JournalRecord | None, other: JournalRecord | None) -> float | None:
    if one is None or other is None:
        return None
    since, at = (datetime.fromisoformat(entry["ts"]) for entry in (one, other))
    return round((at - since).total_seconds(), 1)


def wrong(one: Told) -> bool:
    return (one.result == "rolled_back") is (one.green == EQUAL)


def line(one: Told) -> str:
    return (
        f"{one.engine:<4} {one.green:<22} {one.result:<12} {one.weight:>3}% {one.verdict_s or 0:>7.1f} "
        f"{one.back_s or 0:>5.1f} {one.exposed:>6} {one.bad_exposed:>5}  {one.why[:120]}"
    )


def document(rows: Sequence[Told]) -> dict[str, object]:
    return {"rollouts": [asdict(row) | {"wrong": wrong(row)} for row in rows]}

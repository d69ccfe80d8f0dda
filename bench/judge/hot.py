"""Section `hot`: the judge of a time-split trial on a simulated server with a queue (see queueing).

Requests take 5 s each. The trial begins after five minutes of the present setting, the last three of which
are its baseline, and ends undecided after an hour. `late` differs between the arms: the share of the requests
that miss the SLO by themselves, so the gain is known; what waits in the queue is late as well.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from bench.judge.queueing import LIMIT_S, SERVICE_S, Load, QueueingServer, Setting
from bench.judge.runs import Pool, Row
from bench.judge.traffic import quantiles, seeded
from flettner.agent.domain.blocks import BlockSecond
from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.blocks.verdict import begin_blocks, update_blocks

SLO = Slo(ttft=Objective(under_s=LIMIT_S, share=0.9))
BEFORE_S, RECORD_S, LIMIT_OF_TRIAL_S = 300, 180, 3600
RATES = (2.0, 8.0)
SHAPES = ("steady", "drift", "bursts", "waves", "pauses")
AMPLE, FULL, SHORT = 1.6, 1.0, 0.8  # slots in units of the mean load
SHARE_EQUAL, SHARE_UNEQUAL = 0.01, 0.005  # of the requested runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    present: Setting
    candidate: Setting
    needed: GainNeeded = "always"
    equal: bool = False


def of_late(before: float, after: float, needed: GainNeeded = "always") -> Case:
    """Return two arms that differ without a queue."""
    return Case(present=Setting(AMPLE, before), candidate=Setting(AMPLE, after), needed=needed)


def alike(slots: float, late: float = 0.02) -> Case:
    return Case(present=Setting(slots, late), candidate=Setting(slots, late), equal=True)


CASES: Mapping[str, Case] = {
    "equal, room": alike(AMPLE),
    "equal, a fifth late": alike(AMPLE, 0.2),
    "equal, full": alike(FULL),
    "equal, overloaded": alike(SHORT),
    "50 points better": of_late(0.6, 0.1),
    "20 points better": of_late(0.3, 0.1),
    "5 points better": of_late(0.15, 0.1),
    "a queue cured": Case(present=Setting(SHORT), candidate=Setting(AMPLE)),
    "nearly all late": of_late(0.02, 0.95, "never"),
    "50 points worse": of_late(0.02, 0.52, "never"),
    "20 points worse": of_late(0.02, 0.22, "never"),
    "5 points worse": of_late(0.02, 0.07, "never"),
    "a queue made": Case(present=Setting(AMPLE), candidate=Setting(0.4), needed="never"),
    "equal, no gain needed": Case(
        present=Setting(AMPLE), candidate=Setting(AMPLE), needed="never", equal=True
    ),
}


@dataclass(frozen=True, slots=True)
class Ended:
    kind: str
    minutes: float
    bad: int  # requests of the candidate's blocks that failed or missed the SLO
    candidate_s: int  # for which the candidate was on


def play(name: str, shape: str, rps: float, run: int) -> Ended:
    """Play one trial."""
    case, about = CASES[name], ("hot", name, shape, rps, run)
    load = Load(shape, rps, seeded(*about))
    pauses = seeded(*about, "pauses") if shape == "pauses" else None
    server = QueueingServer(rps * SERVICE_S, pauses)
    baseline = RequestCounts()
    for second in range(-BEFORE_S, 0):
        counts = server.run_second(second, load.second(second), case.present)
        baseline += counts if second >= -RECORD_S else RequestCounts()
    trial = begin_blocks(
        ":".join(map(str, about)), slo=SLO, baseline=baseline, baseline_s=RECORD_S, gain_needed=case.needed
    )
    candidate_s = 0
    for second in range(LIMIT_OF_TRIAL_S):
        arm = trial.arm
        candidate_s += arm == "candidate"
        setting = case.candidate if arm == "candidate" else case.present
        counts = server.run_second(second, load.second(second), setting)
        now = BlockSecond(counts=counts, engines=(server.liveness(),), in_force=arm)
        trial, verdict = update_blocks(trial, now, slo=SLO)
        if verdict.kind in {"pass", "fail", "futile"}:
            return Ended(verdict.kind, second / 60, round(trial.candidate[1]), candidate_s)
    return Ended("undecided", LIMIT_OF_TRIAL_S / 60, round(trial.candidate[1]), candidate_s)


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    for (name, case), shape, rps in product(CASES.items(), SHAPES, RATES):
        many = max(4, round(runs * (SHARE_EQUAL if case.equal else SHARE_UNEQUAL)))
        yield f"{name}, {shape}, {rps:g} rps", summarise(pool.of(partial(play, name, shape, rps), many))


def summarise(ended: Sequence[Ended]) -> Row:
    kinds = Counter(trial.kind for trial in ended)
    row: Row = {"runs": len(ended), **kinds}
    for kind in kinds:
        times = [trial.minutes for trial in ended if trial.kind == kind]
        row[f"minutes to {kind}"] = [round(value, 1) for value in quantiles(times, 0.5, 0.9)]
    row["candidate's seconds"] = quantiles([trial.candidate_s for trial in ended], 0.5)[0]
    row["candidate's bad requests"] = quantiles([trial.bad for trial in ended], 0.5)[0]
    return row

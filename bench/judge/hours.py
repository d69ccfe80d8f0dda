"""Sections `nulls`, `worse`, `late`: one hour of one stream, for the judge and the compared tools."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from math import inf

from bench.judge import peers
from bench.judge.ours import SURE, Evidence, blues, calibrated, greens
from bench.judge.runs import Pool, Row
from bench.judge.scenarios import SCENARIOS, Scenario
from bench.judge.traffic import TICK_S, Tick, Traffic, history, quantiles, seeded, ticks
from flettner.agent.domain.calibration import Calibration

KAYENTA_RUNS = 0.1
RUNS_OF_A_HISTORY = 10
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """Tick at which each rule rolls green back, or None. `phi`: dispersion of blue before."""

    phi: float
    tick_phi: float
    requests: tuple[int, ...]  # of green, up to each tick
    excess: tuple[float, ...]  # bad requests above the rate of blue, up to each tick
    back: Mapping[str, int | None]


@cache
def learned(traffic: Traffic, number: int) -> Calibration | None:
    """Calibrate on four hours of blue. Runs share it, as it costs more than the judged hour."""
    return calibrated(history(seeded("history", traffic, number), traffic))


def hour(name: str, kayenta: float, run: int) -> Hour:
    scenario = SCENARIOS[name]
    calibration = learned(scenario.traffic, run // RUNS_OF_A_HISTORY)
    random = seeded(name, run)
    made = ticks(random, scenario.traffic, scenario.green, scenario.blue)
    green, blue = greens(made), blues(made)
    evidence = Evidence(calibration)
    back = _backs(evidence, made, both=scenario.onset is not None)
    back |= {f"flagger {n}": peers.flagger(n)(green, scenario.limit) for n in (1, 5, 10)}
    back |= {"argo": peers.argo(green, scenario.limit), "z": peers.z_test(green, blue)}
    if run < kayenta:
        back["kayenta"] = peers.kayenta(green, blue)
    shares = zip(green, scenario.green, scenario.blue, strict=True)
    more = (n * (now - usual) for (n, _), now, usual in shares)
    return Hour(
        phi=calibration.phi if calibration else 1.0,
        tick_phi=calibration.tick_phi if calibration else 1.0,
        requests=tuple(accumulate(n for n, _ in green)),
        excess=tuple(accumulate(more)),
        back=back,
    )


def _backs(evidence: Evidence, made: Iterable[Tick], *, both: bool) -> dict[str, int | None]:
    """Run the judge; with `both`, also without the mixture over start times."""
    back: dict[str, int | None] = dict.fromkeys(("ours", "one start") if both else ("ours",))
    for number, tick in enumerate(made, 1):
        log_e = evidence.update(tick)
        if log_e >= SURE and back["ours"] is None:
            back["ours"] = number
        if both and back["one start"] is None and evidence.log_from_the_start >= SURE:
            back["one start"] = number
        if None not in back.values():
            break
    return back


def summed(scenario: Scenario, hours: Sequence[Hour]) -> Row:
    """Return the row of a scenario: per rule the share of rollbacks, and requests or minutes until then."""
    rules = sorted(
        {rule for judged in hours for rule in judged.back}, key=("ours",).__contains__, reverse=True
    )
    row: Row = {
        "runs": len(hours),
        "phi": round(sum(judged.phi for judged in hours) / len(hours), 2),
        "tick_phi": round(sum(judged.tick_phi for judged in hours) / len(hours), 2),
    }
    for rule in rules:
        backs = [(judged, judged.back[rule]) for judged in hours if rule in judged.back]
        counts = [inf if at is None else judged.requests[at - 1] for judged, at in backs]
        bad = [inf if at is None else judged.excess[at - 1] for judged, at in backs]
        onset = scenario.onset or 0
        waits = [inf if at is None else (at - 1 - onset) * TICK_S / MINUTE_S for _, at in backs]
        row[rule] = {
            "runs": len(backs),
            "back": sum(at is not None for _, at in backs) / len(backs),
            "requests": finite(quantiles(counts, 0.5, 0.9)),
            "excess_bad": finite(quantiles(bad, 0.5)),
            "minutes": finite(quantiles(waits, 0.5, 0.9)),
        }
    return row


def finite(values: Iterable[float]) -> list[float | None]:
    """Return a JSON value: null if there was no rollback within the hour."""
    return [round(value, 2) if value < inf else None for value in values]


def measure(scenarios: Mapping[str, Scenario], pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    for name, scenario in scenarios.items():
        many = max(2, round(runs * scenario.runs))
        yield name, summed(scenario, pool.of(partial(hour, name, min(many, runs * KAYENTA_RUNS)), many))

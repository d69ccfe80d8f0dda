"""Change what a replay of the recorded requests, on a fitted law of step time, shows to be better."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from flettner.agent.domain.lateness import has_need
from flettner.agent.domain.model import Evidence, Proposal
from flettner.agent.domain.model_advice import Capacity, ModelAdvice, Numbers, PredictedChange
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.band import Band
from flettner.policies.shared.overload import can_end_queue
from flettner.policies.shared.signals import check_options, has_insufficient_data
from flettner.vllm_facts.values import describe_changes

SOURCE = "prediction by flettner's model of vLLM's scheduler (docs/prediction.md)"
CHANGE = "PM1"
LATENCIES = (
    ("ttft_p90_s", "TTFT (90 %)"),
    ("itl_p90_s", "time between tokens (90 %)"),
    ("e2e_p90_s", "whole request (90 %)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Rules PM1, PM2 and PM3. They need an accepted law of step time, an objective, and a miss of it now.

    PM1 proposes the best joint change, PM2 says how many servers the load needs where no change of one is
    enough, PM3 names the suggestion of a rule that the model expects to do harm.
    """

    uses_advice: ClassVar[bool] = True  # of the performance model, which is not asked for it otherwise

    oldest_s: float = 900.0  # of an advice: the length of the recorded trace
    servers_at_most: int = 64  # PM2: beyond, the number is no advice
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        advice = context.advice
        if advice is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        age_s = (reading.at - advice.made_at).total_seconds()
        if dict(advice.setting) != dict(context.setting) or age_s > self.oldest_s:
            return ()
        found = [_warn_of_rules(advice)]
        if has_need(reading, context.slo):
            helps = can_end_queue(reading, gain=_capacity_gain(advice))
            found += [_change(advice) if helps else None, self._count_servers(advice)]
        return tuple(proposal for proposal in found if proposal)

    def _count_servers(self, advice: ModelAdvice) -> Proposal | None:
        servers = advice.servers
        if advice.reaches_goal or servers is None or not 1 < servers <= self.servers_at_most:
            return None
        one = advice.best_capacity or advice.capacity
        alone = f"one carries {one.rate_rps:.2f}" if one.rate_rps else "one carries none of it in time"
        why = (
            f"{servers} servers carry the {advice.rate_rps:.2f} requests/s within the objectives, {alone}; "
            f"{advice.why_nothing or 'the best change of one server is not enough'}"
        )
        return _note("PM2", advice, why, f"capacity: {servers} servers like this one")


def _change(advice: ModelAdvice) -> Proposal | None:
    best = advice.best
    if best is None:
        return None
    now, then = advice.present["attainment"], advice.then["attainment"]
    against = "".join(
        f"; {one.rule} suggests {describe_changes(one.to)}: {_points(one.gain)}"
        for one in advice.rules
        if one.rule != CHANGE and one.to.items() - best.to.items()
    )
    why = (
        f"replaying {advice.requests:,} recorded requests ({advice.rate_rps:.2f}/s), {now.value:.1%} meet "
        f"the objectives with the present flags and {_share(then)} with {describe_changes(best.to)}, the "
        f"best of {advice.tried} settings ({_points(best.gain)}){against}"
    )
    return Proposal(
        rule=CHANGE,
        to=best.to,
        why=why,
        expects=_describe_effect(advice),
        risks=f"a prediction {_describe_errors(advice)}{_describe_distance(advice)}; the canary judges it",
        source=SOURCE,
        evidence=_evidence(advice),
        assumed=advice.assumed,
        mitigation=True,  # an objective is missed
    )


def _capacity_gain(advice: ModelAdvice) -> float:
    """The rate that the best change carries over the present one; unbounded if one of them carries nothing.

    The replay begins with an empty server: its first requests are in time, however far the queue grows later.
    """
    now, then = advice.capacity.rate_rps, advice.best_capacity and advice.best_capacity.rate_rps
    return then / now if now and then else inf


def _warn_of_rules(advice: ModelAdvice) -> Proposal | None:
    """PM3, for the suggestion with the largest loss, if chance and the law's error do not explain it."""
    losses = [one for one in advice.rules if one.rule != CHANGE and one.gain.high < 0]
    if not losses:
        return None
    worst = min(losses, key=lambda one: one.gain.value)
    why = (
        f"the model contradicts {worst.rule}: {describe_changes(worst.to)} changes the share of requests "
        f"within the objectives by {_points(worst.gain)}, {_describe_errors(advice)}"
    )
    return _note(
        "PM3", advice, why, f"deny the suggestion of {worst.rule}, or let the canary judge it", worst
    )


def _note(
    rule: str, advice: ModelAdvice, why: str, expects: str, change: PredictedChange | None = None
) -> Proposal:
    return Proposal(
        rule=rule,
        to={},
        why=why,
        expects=expects,
        risks="none: no change",
        source=SOURCE,
        evidence=_evidence(advice, change),
        klass="note",
    )


def _describe_effect(advice: ModelAdvice) -> str:
    parts = [
        f"{title} {_latency(advice.present[name].value)} → {_latency_band(advice.then[name])}"
        for name, title in LATENCIES
        if name in advice.present and name in advice.then
    ]
    before, after = advice.present["goodput_per_s"], advice.then["goodput_per_s"]
    parts.append(
        f"requests/s within the objectives {before.value:.2f} → {after.value:.2f} "
        f"({after.low:.2f} to {after.high:.2f})"
    )
    return "; ".join((*parts, _describe_headroom(advice)))


def _describe_headroom(advice: ModelAdvice) -> str:
    return (
        f"the objectives hold up to {_rate(advice.best_capacity or advice.capacity)}, at present up to "
        f"{_rate(advice.capacity)}"
    )


def _describe_errors(advice: ModelAdvice) -> str:
    return (
        f"with a law from the {advice.law_source} that was off by {advice.itl_error:.0%} on the time between "
        f"tokens and {advice.ttft_error:.0%} on TTFT (90 %) of traffic it had not seen"
    )


def _describe_distance(advice: ModelAdvice) -> str:
    return f"; {advice.extrapolation}" if advice.extrapolation else ""


def _evidence(advice: ModelAdvice, change: PredictedChange | None = None) -> tuple[Evidence, ...]:
    window_s = advice.requests / advice.rate_rps
    chosen = change or advice.best
    rows = [
        ("recorded_rate", advice.rate_rps, "requests/s"),
        ("attainment_now", advice.present["attainment"].value, "ratio"),
        *_predicted(advice.then),
        *((("gain_low", chosen.gain.low, "ratio"),) if chosen else ()),
    ]
    return tuple(
        Evidence(metric=name, value=value, unit=unit, window_s=window_s) for name, value, unit in rows
    )


def _predicted(numbers: Numbers) -> list[tuple[str, float, str]]:
    wanted = (("attainment", "ratio"), *((name, "s") for name, _ in LATENCIES))
    return [(f"{name}_predicted", numbers[name].value, unit) for name, unit in wanted if name in numbers]


def _points(gain: Band) -> str:
    return f"{100 * gain.value:+.1f} points, {100 * gain.low:+.1f} to {100 * gain.high:+.1f}"


def _share(band: Band) -> str:
    return f"{band.value:.1%} ({band.low:.1%} to {band.high:.1%})"


def _latency_band(band: Band) -> str:
    return f"{_latency(band.value)} ({_latency(band.low)} to {_latency(band.high)})"


def _latency(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(capacity: Capacity) -> str:
    return "no load of this kind" if capacity.rate_rps is None else f"{capacity.rate_rps:.2f} requests/s"


plugin = Model

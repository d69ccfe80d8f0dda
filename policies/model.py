"""Make the change that is best in a replay of the recorded requests, by a fitted law of step time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from flettner.agent.domain.lateness import has_need
from flettner.agent.domain.model import Evidence, Proposal
from flettner.agent.domain.model_search import Capacity, ModelSearchResult, Numbers, PredictedChange
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.band import Band
from flettner.policies.shared.overload import can_end_queue
from flettner.policies.shared.signals import check_options, has_insufficient_data
from flettner.rules.table import name_of
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

    uses_model_search: ClassVar[bool] = True  # of the performance model, which is not asked for it otherwise

    oldest_s: float = 900.0  # age of a search result: the length of the recorded trace
    servers_at_most: int = 64  # PM2: beyond, no number is given
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        result = context.model_search
        if result is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        age_s = (reading.at - result.made_at).total_seconds()
        if dict(result.setting) != dict(context.setting) or age_s > self.oldest_s:
            return ()
        proposals = [_warn_of_rules(result)]
        if has_need(reading, context.slo):
            helps = can_end_queue(reading, gain=_capacity_gain(result))
            proposals += [_change(result) if helps else None, self._count_servers(result)]
        return tuple(proposal for proposal in proposals if proposal)

    def _count_servers(self, result: ModelSearchResult) -> Proposal | None:
        servers = result.servers
        if result.reaches_goal or servers is None or not 1 < servers <= self.servers_at_most:
            return None
        capacity = result.best_capacity or result.capacity
        alone = (
            f"one carries {capacity.rate_rps:.2f}" if capacity.rate_rps else "one carries none of it in time"
        )
        why = (
            f"{servers} servers carry the {result.rate_rps:.2f} requests/s within the objectives, {alone}; "
            f"{result.why_nothing or 'the best change of one server is not enough'}"
        )
        return _note("PM2", result, why, f"capacity: {servers} servers like this one")


def _change(result: ModelSearchResult) -> Proposal | None:
    best = result.best
    if best is None:
        return None
    now, then = result.present["attainment"], result.then["attainment"]
    against = "".join(
        f"; {name_of(rule.rule)} suggests {describe_changes(rule.to)}: {_points(rule.gain)}"
        for rule in result.rules
        if rule.rule != CHANGE and rule.to.items() - best.to.items()
    )
    why = (
        f"replaying {result.requests:,} recorded requests ({result.rate_rps:.2f}/s), {now.value:.1%} meet "
        f"the objectives with the present flags and {_share(then)} with {describe_changes(best.to)}, the "
        f"best of {result.tried} settings ({_points(best.gain)}){against}"
    )
    return Proposal(
        rule=CHANGE,
        to=best.to,
        why=why,
        expects=_describe_effect(result),
        risks=f"a prediction {_describe_errors(result)}{_describe_distance(result)}; the canary judges it",
        source=SOURCE,
        evidence=_evidence(result),
        assumed=result.assumed,
        mitigation=True,  # an objective is missed
    )


def _capacity_gain(result: ModelSearchResult) -> float:
    """The rate that the best change carries over the present one; unbounded if one of them carries nothing.

    The replay begins with an empty server: its first requests are in time, however far the queue grows later.
    """
    now, then = result.capacity.rate_rps, result.best_capacity and result.best_capacity.rate_rps
    return then / now if now and then else inf


def _warn_of_rules(result: ModelSearchResult) -> Proposal | None:
    """PM3, for the suggestion with the largest loss, if chance and the law's error do not explain it."""
    losses = [rule for rule in result.rules if rule.rule != CHANGE and rule.gain.high < 0]
    if not losses:
        return None
    worst = min(losses, key=lambda rule: rule.gain.value)
    why = (
        f"the model contradicts {name_of(worst.rule)}: {describe_changes(worst.to)} changes the share of "
        f"requests within the objectives by {_points(worst.gain)}, {_describe_errors(result)}"
    )
    return _note(
        "PM3", result, why, f"deny the suggestion of {name_of(worst.rule)}, or let the canary judge it", worst
    )


def _note(
    rule: str, result: ModelSearchResult, why: str, expects: str, change: PredictedChange | None = None
) -> Proposal:
    return Proposal(
        rule=rule,
        to={},
        why=why,
        expects=expects,
        risks="none: no change",
        source=SOURCE,
        evidence=_evidence(result, change),
        klass="note",
    )


def _describe_effect(result: ModelSearchResult) -> str:
    parts = [
        f"{title} {_latency(result.present[name].value)} → {_latency_band(result.then[name])}"
        for name, title in LATENCIES
        if name in result.present and name in result.then
    ]
    before, after = result.present["goodput_per_s"], result.then["goodput_per_s"]
    parts.append(
        f"requests/s within the objectives {before.value:.2f} → {after.value:.2f} "
        f"({after.low:.2f} to {after.high:.2f})"
    )
    return "; ".join((*parts, _describe_headroom(result)))


def _describe_headroom(result: ModelSearchResult) -> str:
    return (
        f"the objectives hold up to {_rate(result.best_capacity or result.capacity)}, at present up to "
        f"{_rate(result.capacity)}"
    )


def _describe_errors(result: ModelSearchResult) -> str:
    return (
        f"with a law from the {result.law_source} that was off by {result.itl_error:.0%} on the time between "
        f"tokens and {result.ttft_error:.0%} on TTFT (90 %) of traffic it had not seen"
    )


def _describe_distance(result: ModelSearchResult) -> str:
    return f"; {result.extrapolation}" if result.extrapolation else ""


def _evidence(result: ModelSearchResult, change: PredictedChange | None = None) -> tuple[Evidence, ...]:
    window_s = result.requests / result.rate_rps
    chosen = change or result.best
    rows = [
        ("recorded_rate", result.rate_rps, "requests/s"),
        ("attainment_now", result.present["attainment"].value, "ratio"),
        *_predicted(result.then),
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

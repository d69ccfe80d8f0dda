"""Switch between two settings where the load is of two kinds that take turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flettner.agent.domain.model import Evidence, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.regimes import WORDS, RegimeAdvice, describe_trigger
from flettner.performance_model.load_mixes import TwoMixes
from flettner.policies.shared.signals import check_options, has_insufficient_data
from flettner.vllm_facts.values import Setting, describe_changes

SOURCE = "prediction by flettner's model of vLLM's scheduler (docs/prediction.md)"
DAY_HOURS = 24
RISKS = "a prediction; each switch is a trial of some minutes, in which the values take turns"
COLD_RISKS = "a prediction; each switch starts servers, which takes memory or capacity beside those that run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regimes:
    """Rule PM4. It needs an accepted law, an objective, and two days of load. Where no limit changes at run
    time, each switch is a rollout that starts servers.

    The advice says what is certainly gained over the best single setting; this rule adds who may switch when.
    """

    uses_regimes: ClassVar[bool] = True  # of the performance model, which is not asked for them otherwise

    oldest_h: float = 48.0  # age of the advice, which is made once a day
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        advice = context.regimes
        if advice is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        age_s = (reading.at - advice.made_at).total_seconds()
        to = _values_not_in_force(advice, context.setting)
        if dict(advice.setting) != dict(context.setting) or age_s > 3600 * self.oldest_h or not to:
            return ()
        single = describe_changes(advice.single) if advice.single else "the present one"
        return (
            Proposal(
                rule="PM4",
                to=to,
                why=(
                    f"{_describe_mixes(advice.mixes)}; with one setting each {advice.attainment:.1%} of the "
                    f"requests meet the objectives, with the best single one ({single}) "
                    f"{advice.single_attainment:.1%} ({100 * advice.gain.low:+.1f} to "
                    f"{100 * advice.gain.high:+.1f} points)"
                ),
                expects=describe_trigger(advice.plan),
                risks=COLD_RISKS if advice.plan.cold else RISKS,
                source=SOURCE,
                evidence=_evidence(advice),
                assumed=advice.assumed,
                klass="gated",
                regimes=advice.plan,
            ),
        )


def _values_not_in_force(advice: RegimeAdvice, setting: Setting) -> Setting:
    """Those of the regime above, if the servers do not run with them, else of the one below."""
    present = {**advice.assumed, **{knob: value for knob, value in setting.items() if value is not None}}
    differing = (
        {knob: value for knob, value in regime.values.items() if present.get(knob) != value}
        for regime in (advice.plan.above, advice.plan.below)
    )
    return next(filter(None, differing), {})


def _describe_mixes(mixes: TwoMixes) -> str:
    when = _describe_hours(mixes.above_hours)
    return (
        f"in {mixes.days:.0f} days {WORDS[mixes.metric]} of about {mixes.below_tokens:,.0f} and "
        f"{mixes.above_tokens:,.0f} tokens took turns, the longer ones {when}"
    )


def _describe_hours(hours: Sequence[int]) -> str:
    """`0, 1, 22, 23` is "mostly 22:00 to 02:00 UTC"."""
    begins = [hour for hour in hours if (hour - 1) % DAY_HOURS not in hours]
    if not begins:
        return "at no certain hours"
    spans = []
    for begin in begins:
        end = next(hour for hour in range(begin, begin + DAY_HOURS) if hour % DAY_HOURS not in hours)
        spans.append(f"{begin:02}:00 to {end % DAY_HOURS:02}:00")
    return f"mostly {' and '.join(spans)} UTC"


def _evidence(advice: RegimeAdvice) -> tuple[Evidence, ...]:
    window_s = 86_400 * advice.mixes.days
    rows = (
        ("attainment_single", advice.single_attainment, "ratio"),
        ("attainment_predicted", advice.attainment, "ratio"),
        ("gain_low", advice.gain.low, "ratio"),
        ("above_share", advice.mixes.above_share, "ratio"),
    )
    return tuple(
        Evidence(metric=name, value=value, unit=unit, window_s=window_s) for name, value, unit in rows
    )


plugin = Regimes

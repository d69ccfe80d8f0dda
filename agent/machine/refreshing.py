"""Refreshing an open suggestion: the same change with present numbers, plan and forecast. Pure.

A refresh gives a new digest, so an operator who looks must look again. Therefore it happens at most once a
minute, and only for a material difference. The preflight is not repeated, and `expires_at` stays.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.amounts import describe_amount
from flettner.agent.domain.model import Forecast, Plan, Proposal
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.judge.wording import describe_duration
from flettner.agent.machine.checking import plan_at, seal_suggestion
from flettner.agent.machine.transitions import Rules
from flettner.vllm_facts.values import Knob, Setting, Value, as_number

MATERIAL = 1.25  # ratio of two values, durations or shares that makes a difference
MATERIAL_EVIDENCE = 2.0  # of measurements, which fluctuate more


def is_material(before: Value, after: Value, ratio: float = MATERIAL) -> bool:
    """Whether two numbers differ by more than this ratio, or two other values differ."""
    numbers = [number for value in (before, after) if (number := as_number(value)) is not None]
    if len(numbers) < len((before, after)):
        return before != after
    low, high = sorted(abs(number) for number in numbers)
    return high > ratio * low or (numbers[0] < 0) is not (numbers[1] < 0)


def is_another_change(before: Setting, after: Setting) -> bool:
    """Whether the values differ materially, or the knobs at all."""
    return before.keys() != after.keys() or any(is_material(before[knob], after[knob]) for knob in before)


def is_younger(shown: Suggestion, at: datetime, seconds: float) -> bool:
    """Whether the suggestion was made or refreshed less than this time ago."""
    return at - (shown.refreshed_at or shown.made_at) < timedelta(seconds=seconds)


def refresh(rules: Rules, state: State, shown: Suggestion, now: Proposal | None, at: datetime) -> Suggestion:
    """The suggestion with present numbers if they differ materially, else as shown.

    `now`: the policy's present proposal, after the guard; None: it is unknown, and the numbers stay.
    """
    every_s = rules.guard.refresh_s
    is_time = at.timestamp() % every_s < 1  # a forecast each second would cost too much
    if shown.plan is None or shown.approved_by or not is_time or is_younger(shown, at, every_s):
        return shown
    same: dict[Knob, Value] = dict(shown.proposal.to)
    resolved = {knob: new for knob, (_, new) in shown.preflight.resolved.items()}
    again = now is not None and {**now.to, **resolved} == same
    proposal = replace(now, to=same) if now is not None and again else shown.proposal
    fresh = replace(shown, proposal=proposal, refreshed_at=at)
    sealed = seal_suggestion(rules, state, fresh, shown.preflight, at=at, expires_at=shown.expires_at)
    planned = [
        plan_at(rules, state, shown.proposal, shown.preflight, rate_rps=shown.rate_rps, failing=failing)
        for failing in (True, False)
    ]
    what = "; ".join(_differences(shown, sealed, reconfigured=shown.plan not in planned))
    if not what:
        return shown
    fresh = replace(fresh, changed=what)
    return seal_suggestion(rules, state, fresh, shown.preflight, at=at, expires_at=shown.expires_at)


def _differences(old: Suggestion, new: Suggestion, *, reconfigured: bool) -> Iterator[str]:
    """What differs materially, as phrases."""
    if reconfigured or _shares_differ(old.plan, new.plan):
        yield "the plan of the rollout"
    if (old.window and old.window[:20]) != (new.window and new.window[:20]):
        yield new.window or "it fits into the window now"
    if (old.forecast is None) is not (new.forecast is None):
        yield "there is traffic now" if new.forecast else "there is no traffic for a forecast now"
    if old.forecast is not None and new.forecast is not None and _lasts_otherwise(old.forecast, new.forecast):
        usual, before_it = (describe_duration(each.usual_s) for each in (new.forecast, old.forecast))
        yield f"a canary of about {usual} instead of {before_it}"
    before = {evidence.metric: evidence.value for evidence in old.proposal.evidence}
    for evidence in new.proposal.evidence:
        was = before.get(evidence.metric, evidence.value)
        if is_material(was, evidence.value, MATERIAL_EVIDENCE):
            present, before_it = (describe_amount(value, evidence.unit) for value in (evidence.value, was))
            yield f"{evidence.metric} {present} instead of {before_it}"


def _shares_differ(old: Plan | None, new: Plan | None) -> bool:
    """Whether the shares of traffic differ; they follow the request rate."""
    before, after = old.steps if old else (), new.steps if new else ()
    pairs = zip(before, after, strict=False)
    return len(before) != len(after) or any(is_material(a.weight, b.weight) for a, b in pairs)


def _lasts_otherwise(old: Forecast, new: Forecast) -> bool:
    pairs = ((old.usual_s, new.usual_s), (old.likely_s, new.likely_s), (old.hold_s, new.hold_s))
    return old.too_long != new.too_long or any(is_material(before, after) for before, after in pairs)

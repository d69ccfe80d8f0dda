"""Which values are not suggested again, or not yet, because of how a rollout of them ended. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import takewhile

from flettner.agent.domain.model import Outcome
from flettner.vllm_facts.values import Knob, Value

DENIED_FOR = timedelta(hours=24)  # a denied change is not suggested again for this time
COMBINED = ("rolled_back", "no_gain", "undecided")  # the server started, and no check or operator refused it
NO_EVIDENCE = ("undecided", "aborted")  # the values were not judged
BACK_AFTER = timedelta(hours=3)  # a hot change is not reversed earlier, under the same load
OTHER_LOAD = 1.5  # ratio of two request rates that makes another load
UNDECIDED_FOR = timedelta(minutes=30)  # doubled with each further outcome that is no evidence


def gained_nothing(outcomes: tuple[Outcome, ...], to: Mapping[Knob, Value]) -> bool:
    """Whether the last evidence about these values, of the present other flags, is that they gain nothing."""
    same = (outcome for outcome in _present_evidence(outcomes) if _is_repeated(outcome, to))
    latest = next((outcome for outcome in same if outcome.result not in NO_EVIDENCE), None)
    return latest is not None and latest.result == "no_gain"


def _present_evidence(outcomes: tuple[Outcome, ...]) -> Iterator[Outcome]:
    """The newest first. After a promotion a change that gained nothing before it may gain."""
    promoted = False
    for outcome in reversed(outcomes):
        if not (promoted and outcome.result == "no_gain"):
            yield outcome
        promoted = promoted or outcome.result == "promoted"


def why_not_again(outcomes: tuple[Outcome, ...], to: Mapping[Knob, Value], at: datetime) -> str:
    """Why these values must not be tried again, or not yet; empty if they may."""
    same = [o for o in _present_evidence(outcomes) if _is_repeated(o, to)]
    undecided = list(takewhile(lambda outcome: outcome.result in NO_EVIDENCE, same))
    if undecided:
        latest = undecided[0]
        again = latest.at + min(UNDECIDED_FOR * 2 ** min(len(undecided) - 1, 10), DENIED_FOR)
        if latest.at <= at < again:
            tried = ", ".join(f"{k}={v}" for k, v in latest.to.items())
            ended = "was aborted" if latest.result == "aborted" else "ended undecided"
            return f"{tried} {ended} and waits until {again:%H:%M}: {latest.why}"
    for outcome in same[len(undecided) :]:
        if outcome.result in NO_EVIDENCE:
            continue
        if outcome.result == "promoted":
            return ""  # it has served since, whatever came before
        tried = ", ".join(f"{k}={v}" for k, v in outcome.to.items())
        if outcome.result == "refused":
            return f"vLLM does not accept {tried}: {outcome.why}"
        if outcome.result != "denied":
            return f"{tried} was tried and {outcome.result.replace('_', ' ')}: {outcome.why}"
        if at < outcome.at + DENIED_FOR:
            return f"{tried} was denied: {outcome.why}"
    return ""


def why_not_back(
    outcomes: tuple[Outcome, ...], to: Mapping[Knob, Value], at: datetime, rate_rps: float | None
) -> str:
    """Why a knob of running servers must not be moved back yet; empty if it may, as under another load.

    Without this, limits that are equally good would follow every fluctuation.
    """
    for outcome in reversed(outcomes):
        if not outcome.hot or outcome.result != "promoted" or at >= outcome.at + BACK_AFTER:
            continue
        back = [knob for knob in to if _is_reversal(outcome, knob, to[knob])]
        if back and not _is_other_load(outcome.rate_rps, rate_rps):
            stays = f"stays until {outcome.at + BACK_AFTER:%H:%M}"
            return f"{', '.join(back)} was moved the other way at {outcome.at:%H:%M}, and {stays}"
    return ""


def _is_reversal(outcome: Outcome, knob: Knob, value: Value) -> bool:
    before, after = outcome.before.get(knob), outcome.to.get(knob)
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return knob in outcome.to and value == before
    if not isinstance(value, int | float):
        return False
    return (value - after) * (after - before) < 0


def _is_other_load(then: float | None, now: float | None) -> bool:
    if not then or not now:
        return False
    return max(then, now) >= OTHER_LOAD * min(then, now)


def was_aborted(outcomes: tuple[Outcome, ...], to: Mapping[Knob, Value], at: datetime) -> bool:
    """Whether an operator aborted a rollout of these values lately: it does not start again by itself."""
    return any(
        outcome.result == "aborted" and at < outcome.at + DENIED_FOR and _is_repeated(outcome, to)
        for outcome in outcomes
    )


def _is_repeated(outcome: Outcome, to: Mapping[Knob, Value]) -> bool:
    """True if `to` has a value of the outcome's change, or its knobs where the preflight found an obstacle.

    Not where the change did no good alone and now comes with another knob: two limits may bind in turn.
    """
    if not outcome.started and outcome.result == "undecided":
        return outcome.to.keys() == to.keys()  # else each new value would be checked at once, without a pause
    if outcome.result in COMBINED and outcome.to.items() < to.items():
        return False
    return any(knob in to and to[knob] == value for knob, value in outcome.to.items())

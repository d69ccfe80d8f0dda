"""Which values are not suggested again, or not yet, because of how a rollout of them ended. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import takewhile

from agent.domain.model import Outcome
from vllm_facts.values import Knob, Value

DENIED_FOR = timedelta(hours=24)  # a denied change is not suggested again for so long
UNDECIDED_FOR = timedelta(minutes=30)  # doubled with each further outcome that is no evidence


def why_not_again(outcomes: tuple[Outcome, ...], to: Mapping[Knob, Value], at: datetime) -> str:
    """Why these values must not be tried again, or not yet; empty if they may."""
    same = [o for o in reversed(outcomes) if any(k in to and to[k] == v for k, v in o.to.items())]
    undecided = list(takewhile(lambda outcome: outcome.result == "undecided", same))
    if undecided:
        latest = undecided[0]
        again = latest.at + min(UNDECIDED_FOR * 2 ** min(len(undecided) - 1, 10), DENIED_FOR)
        if latest.at <= at < again:
            tried = ", ".join(f"{k}={v}" for k, v in latest.to.items())
            return f"{tried} ended undecided and waits until {again:%H:%M}: {latest.why}"
    for outcome in same[len(undecided) :]:
        if outcome.result == "undecided":
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

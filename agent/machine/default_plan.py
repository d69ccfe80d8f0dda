"""What a rollout's plan becomes for a strategy, a number of servers and a rate of requests."""

from dataclasses import replace
from math import ceil

from agent.domain.model import Plan, PreflightResult, Step, Strategy


def plan_for(plan: Plan, prospect: PreflightResult, servers: int, rate_rps: float | None = None) -> Plan:
    """The configured shares up to load parity, then the hold-back.

    Parity: green carries as much as each other server. Beside n servers that is 1/(n+1) of the traffic; in
    the place of one of n, 1/n. With nobody beside it, green has everything at once: only the hold-back.
    Of several servers the last old one serves on beside the new ones in the hold-back, as their control.
    A share below parity that would see its requests too late at this rate is made larger, or left out.
    """
    plan = replace(plan, start_s=prospect.deadline_s or plan.start_s)
    *steps, hold = plan.steps
    if prospect.strategy == "swap":
        return replace(plan, steps=(hold,))
    parity = parity_of(prospect.strategy, servers)
    below = [replace(step, parity=parity) for step in steps if step.weight < parity]
    at = [step for step in steps if step.weight >= parity]
    if servers > 1:
        at = [replace(step, weight=parity) for step in at[-1:]]
        hold = replace(hold, weight=100 - parity, parity=100 - parity)
    shared = [*_shares_in_time(below, rate_rps), *(replace(step, parity=parity) for step in at)]
    return replace(plan, steps=(*shared, hold))


def _shares_in_time(below: list[Step], rate_rps: float | None) -> list[Step]:
    """With shares that see their requests within half of the time they have; growing, as before."""
    if not rate_rps:
        return below
    kept: dict[int, Step] = {}
    for step in below:
        weight = max(step.weight, ceil(100 * step.requests / (rate_rps * step.at_most_s / 2)))
        if weight < step.parity:
            kept.setdefault(weight, replace(step, weight=weight))
    return list(kept.values())


def parity_of(strategy: Strategy, servers: int) -> int:
    """Percent."""
    return round(100 / (servers + (strategy == "surge")))

"""The plan of a rollout, adapted to the strategy, the number of servers and the request rate. Pure."""

from dataclasses import replace
from math import ceil

from agent.domain.model import Plan, PreflightResult, Step, Strategy


def plan_for(plan: Plan, prospect: PreflightResult, servers: int, rate_rps: float | None = None) -> Plan:
    """The configured shares up to load parity, then the hold step.

    At parity green carries as much as each other server: 1/(n+1) of the traffic next to n servers, 1/n in the
    slot of one of n. As the only server green gets all traffic at once, so there is only the hold step. With
    several servers the last old one keeps serving in the hold step, as the control. A share below parity that
    would get its requests too late at `rate_rps` is enlarged or left out.
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
    """The shares, enlarged so that each gets its requests within half of its time limit, in growing order."""
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

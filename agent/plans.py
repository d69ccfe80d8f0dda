"""What a rollout's plan becomes for a strategy and a number of servers; frozen when the rollout starts."""

from dataclasses import replace

from agent.model import Plan, Prospect, Strategy


def plan_for(plan: Plan, prospect: Prospect, servers: int) -> Plan:
    """The configured shares up to load parity, then the hold-back.

    Parity: green carries as much as each other server. Beside n servers that is 1/(n+1) of the traffic; in
    the place of one of n, 1/n. With nobody beside it, green has everything at once: only the hold-back.
    """
    plan = replace(plan, start_s=prospect.deadline_s or plan.start_s)
    if prospect.strategy == "surge" and servers == 1:
        return plan
    *steps, hold = plan.steps
    parity = parity_of(prospect.strategy, servers)
    below = [replace(step, parity=parity) for step in steps if step.weight < parity]
    at = [step for step in steps if step.weight >= parity]
    shared = [*below, *(replace(step, weight=parity, parity=parity) for step in at[-1:])]
    return replace(plan, steps=(*(shared if prospect.strategy != "swap" else ()), hold))


def parity_of(strategy: Strategy, servers: int) -> int:
    """Percent."""
    return round(100 / (servers + (strategy == "surge")))

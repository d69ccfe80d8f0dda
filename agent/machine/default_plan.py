"""The plan of a rollout, adapted to the strategy, the number of servers and the request rate. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

from flettner.agent.domain.model import Plan, PreflightResult, Step, Strategy
from flettner.agent.domain.upgrade import upgrades_in
from flettner.vllm_facts.values import Knob, Value

QUICK = Step(weight=25, requests=10, at_least_s=15.0, at_most_s=0.0)
QUICK_PARITY = Step(weight=50, requests=20, at_least_s=20.0, at_most_s=0.0)
"""Beside a blue that fails its SLO by far waiting costs more than a bad green, which a hard limit rolls back
after twenty requests, ten of them bad. `at_most_s` stays as configured."""

SLOW_S = 60.0  # a share that needs longer for its requests is left out: green is exposed to as many in parity


def configured_plan(plan: Plan, to: Mapping[Knob, Value]) -> Plan:
    """The configured plan for this change.

    An upgrade holds twice as long, as a leak shows after a while, and each share may take twice as long: a
    change of flags that stays undecided is dropped, but a new release has to come one day.
    """
    if not upgrades_in(to):
        return plan
    *steps, hold = plan.steps
    patient = (replace(step, at_most_s=2 * step.at_most_s) for step in steps)
    longer = replace(hold, at_least_s=2 * hold.at_least_s, at_most_s=hold.at_most_s + hold.at_least_s)
    return replace(plan, steps=(*patient, longer))


def plan_for(
    plan: Plan,
    preflight: PreflightResult,
    servers: int,
    rate_rps: float | None = None,
    *,
    failing: bool = False,
) -> Plan:
    """The configured shares up to load parity, then the hold step. `servers`: each replica counts as one.

    At parity green carries as much as each other server: 1/(n+1) of the traffic next to n servers, 1/n in the
    slot of one of n. As the only server green gets all traffic at once, so there is only the hold step. With
    several servers the last old one keeps serving in the hold step, as the control. A share below parity that
    would get its requests too late at `rate_rps` is enlarged or left out, but none that an operator wrote.
    `failing`: blue fails its SLO by far, so the shares are shorter, and larger where no operator wrote them.
    Running servers that take new values have one step, in which both values have half of the time, with the
    time limit of all shares.
    """
    plan = quick_plan(plan, servers, rate_rps) if failing else plan
    shares_card = preflight.strategy == "surge" and preflight.shares_card
    plan = replace(plan, start_s=preflight.deadline_s or plan.start_s, shares_card=shares_card)
    *steps, hold = plan.steps
    if preflight.strategy == "hot":
        at_most_s = sum(step.at_most_s for step in steps) or hold.at_most_s
        return replace(plan, steps=(replace(hold, weight=50, at_least_s=0.0, at_most_s=at_most_s),))
    if preflight.strategy in {"swap", "save"}:
        return replace(plan, steps=(hold,))
    parity = parity_of(preflight.strategy, servers)
    below = [replace(step, parity=parity) for step in steps if step.weight < parity]
    at = [step for step in steps if step.weight >= parity]
    if servers > 1:
        at = [replace(step, weight=parity) for step in at[-1:]]
        hold = replace(hold, weight=100 - parity, parity=100 - parity)
    in_time = below if plan.own_shares else _shares_in_time(below, rate_rps)
    shared = [*in_time, *(replace(step, parity=parity) for step in at)]
    return replace(plan, steps=(*shared, hold))


def follow_evidence(
    plan: Plan,
    configured: Plan,
    preflight: PreflightResult,
    servers: int,
    rate_rps: float | None,
    *,
    failing: bool,
) -> Plan:
    """The approved plan with the shares of the present evidence, none of them larger than approved.

    Beside a blue that fails on the same card a share only divides the hardware. So one that would need longer
    than SLOW_S for its requests is left out, unless an operator wrote it, and load parity is as short.
    """
    fresh = plan_for(configured, preflight, servers, rate_rps, failing=failing)
    most = max((step.weight for step in plan.steps if step.weight < step.parity), default=0)
    steps = tuple(
        replace(step, weight=min(step.weight, most)) if most and step.weight < step.parity else step
        for step in fresh.steps
    )
    if failing and fresh.shares_card and not fresh.own_shares:
        steps = tuple(_shorten_divided(steps, rate_rps or 0.0))
    return replace(plan, steps=steps)


def _shorten_divided(steps: tuple[Step, ...], rate_rps: float) -> Iterator[Step]:
    for step in steps:
        if step.weight >= step.parity:
            yield step if step is steps[-1] else _quickened(step, QUICK)
        elif not _is_slow(step, rate_rps):
            yield step


def _shares_in_time(below: list[Step], rate_rps: float | None) -> list[Step]:
    """The shares, enlarged so that each gets its requests within half of its time limit, in growing order."""
    if not rate_rps:
        return below
    steps: dict[int, Step] = {}
    for step in below:
        weight = max(step.weight, ceil(100 * step.requests / (rate_rps * step.at_most_s / 2)))
        if weight < step.parity:
            steps.setdefault(weight, replace(step, weight=weight))
    return list(steps.values())


def parity_of(strategy: Strategy, servers: int) -> int:
    """Percent."""
    return round(100 / (servers + (strategy == "surge")))


def quick_plan(plan: Plan, servers: int, rate_rps: float | None = None) -> Plan:
    """One share below parity, of a quarter or half of a server's, then parity, then the hold step.

    At a low rate parity is the first share: a bad green is rolled back after as many requests, and a smaller
    share takes minutes to get them. Shares that an operator wrote stay as large as they are.
    """
    *steps, hold = plan.steps
    if not steps or not plan.quick:
        return plan
    if plan.own_shares:
        own = (_quickened(step, QUICK if step is not steps[-1] else QUICK_PARITY) for step in steps)
        return replace(plan, steps=(*own, hold))
    first = _quickened(steps[0], QUICK)
    weight = max(steps[0].weight, min(QUICK.weight, parity_of("surge", servers) // 2))
    last = _quickened(steps[-1], QUICK_PARITY)
    first = replace(first, weight=weight)
    quick = [first] if weight < last.weight and not _is_slow(first, rate_rps) else []
    return replace(plan, steps=(*quick, last, hold))


def _is_slow(step: Step, rate_rps: float | None) -> bool:
    return rate_rps is not None and 100 * step.requests > step.weight * rate_rps * SLOW_S


def _quickened(step: Step, to: Step) -> Step:
    return replace(
        step,
        requests=min(step.requests, to.requests),
        at_least_s=min(step.at_least_s, to.at_least_s),
    )

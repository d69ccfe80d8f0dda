"""CANARY, every second: ask the judge for a verdict on green, and advance it or roll it back.

`apply_verdict` is where a rollback is decided on evidence. Other modules decide on events: launching on
green's start, its loss and an abort, answer_check on its answers, windows on the edge of a window, replacing
and promoting on the last steps, recovering on a restart of the daemon, and hot_trial where no server starts.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.canary_evidence import GREEN, Observation, UnknownModel
from flettner.agent.domain.effects import Route
from flettner.agent.domain.events import Observed
from flettner.agent.domain.model import Server
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import State
from flettner.agent.domain.upgrade import flags_in, start_in, upgrades_in
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.attainment import goodput_phi
from flettner.agent.judge.canary.clients import chosen_by_clients, divide_buckets
from flettner.agent.judge.canary.evidence import FULL_WEIGHT
from flettner.agent.judge.canary.last_look import look_at_limit
from flettner.agent.judge.canary.token_pace import require_pace
from flettner.agent.judge.hard_limits import describe_unknown_models, is_fresh
from flettner.agent.judge.wording import describe_duration
from flettner.agent.machine.adapters import describe_missing, list_models, missing_adapters
from flettner.agent.machine.failing import blue_fails_more, carries, failing_green
from flettner.agent.machine.guard import PERSON
from flettner.agent.machine.launching import ALL, begin_step, route_step
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.promoting import promote
from flettner.agent.machine.replacing import replace_next
from flettner.agent.machine.rolling_back import leave_failing_green, roll_back
from flettner.agent.machine.start_costs import speed_of
from flettner.agent.machine.transitions import Rules, Transition, sum_counts

FRESH_S = 60.0  # a pass needs an answer of green within this time
UNREAD_S = 30.0  # without a usable metrics page of a new release, while blue's is read
SUSPEND_AFTER_S = 120.0  # after this time without admissible evidence green gets no traffic
HELD = "held"


def judge(rules: Rules, state: State, event: Observed) -> Transition:
    """Count this second's requests and act on the judge's verdict."""
    canary = state.canary
    new_green, new_blue = sum_counts(canary.greens, event), sum_counts(state.fleet.running, event)
    heard_at = event.at if new_green.total else canary.heard_at
    canary = replace(canary, exposed=canary.exposed + new_green, heard_at=heard_at)
    state = replace(state, rollout=canary)
    step = canary.plan.steps[canary.step]
    if failing := failing_green(state):
        return leave_failing_green(state, event.at, *failing, f"at {step.weight} %: ")
    if why := find_lost_metrics(state, event):
        return roll_back(state, event.at, f"at {step.weight} %: {why}")
    if any(carries(state, name) for name in state.failing):  # both sides fail: there is nothing to compare
        return keep_alive(state, event.at)
    if canary.step_since is None or isinstance(state.effects.awaited, Route):
        return keep_alive(state, event.at)
    if step.weight < ALL:
        canary = replace(canary, beside=canary.beside.plus(speed_of(state, event)))
    green, blue = canary.green_counts + new_green, canary.blue_counts + new_blue
    evidence, verdict = rules.judge.update(
        canary.evidence,
        step=step,
        slo=rules.slo,
        observation=observation_of(state, event, new_green),
        green=green,
        blue=blue,
        baseline=canary.baseline,
    )
    if last := is_last_look(canary, event.at):
        verdict = look_at_limit(verdict, evidence, step=step, slo=rules.slo, baseline=canary.baseline)
    if must_be_as_fast(rules, canary) and step.parity <= step.weight < FULL_WEIGHT:
        phi = goodput_phi(canary.evidence.calibration, rules.slo)
        verdict = require_pace(verdict, green, blue, phi, seconds=evidence.valid_s, at_limit=last)
    missing = describe_missing(state) or describe_unknown_models(evidence)
    if verdict.kind == "pass" and missing:
        verdict = replace(verdict, kind="wait", why=missing, waits=missing)
    canary = replace(
        canary,
        green_counts=green,
        blue_counts=blue,
        evidence=evidence,
        step_bad=max(canary.step_bad, verdict.bad),
        waits=verdict.waits or verdict.why,
    )
    return apply_verdict(rules, replace(state, rollout=canary), event, verdict)


def find_lost_metrics(state: State, event: Observed) -> str:
    """Which metrics a new release no longer has, beside a blue that has them; empty: none, or no upgrade.

    A metric that the release has under another name counts as had.
    """
    canary, running = state.canary, state.fleet.running
    green = event.engines.get(canary.green.name)
    blue = event.engines.get(running[0].name) if running else None
    if not upgrades_in(canary.suggestion.proposal.to) or not (green and blue and is_fresh(blue)):
        return ""
    if green.unusable and green.age_s >= UNREAD_S:
        return f"green's metrics page cannot be used, and blue's can: {green.unusable}"
    names = ", ".join(f"vllm:{name}" for name in sorted(green.missing - blue.missing))
    return f"green does not export what blue does, and what is decided by it: {names}" if names else ""


def must_be_as_fast(rules: Rules, canary: Canary) -> bool:
    """Whether the change is a new release with the flags as they were, and no ITL is promised."""
    suggestion = canary.suggestion
    own_flags = flags_in(suggestion.proposal.to).keys() - suggestion.preflight.resolved.keys()
    return bool(start_in(suggestion.proposal.to)) and not own_flags and rules.slo.itl is None


def is_last_look(canary: Canary, at: datetime) -> bool:
    """Whether the step of an upgrade is at its time limit: what is undecided then has one look left."""
    return bool(upgrades_in(canary.suggestion.proposal.to)) and is_late(canary, at)


def is_late(canary: Canary, at: datetime) -> bool:
    since, step = canary.step_since, canary.plan.steps[canary.step]
    return since is not None and at - since > timedelta(seconds=step.at_most_s)


def apply_verdict(rules: Rules, state: State, event: Observed, verdict: Verdict) -> Transition:
    """Roll green back, advance it, or wait."""
    canary, at = state.canary, event.at
    step = canary.plan.steps[canary.step]
    if verdict.kind == "fail":
        return roll_back(state, at, f"at {step.weight} %: {verdict.why}")
    if verdict.kind == "futile":
        return roll_back(state, at, f"at {step.weight} %: {verdict.why}", result="no_gain")
    if verdict.kind == "pass" and not answered_recently(canary.heard_at, at):
        verdict = replace(verdict, kind="wait", why=f"green has answered no request for {FRESH_S:.0f} s")
    ill = verdict.kind == "inadmissible" and not event.blind and blue_fails_more(state)
    if is_late(canary, at) and not ill and not (verdict.kind == "pass" and is_last_look(canary, at)):
        within = f"no verdict at {step.weight} % within {describe_duration(step.at_most_s)}"
        why = f"{within}: {verdict.waits or verdict.why}"
        return roll_back(state, at, why, result="no_gain" if verdict.lacks_gain else "undecided")
    if verdict.kind == "inadmissible":
        return wait_for_evidence(state, event, verdict.why)
    if canary.parked:
        return route_step(replace(state, rollout=replace(canary, parked="")))
    if verdict.kind == "pass":
        return advance_step(rules, state, at, f"{step.weight} % passed: {verdict.why}")
    if state.note.startswith(HELD):
        state = replace(state, note=f"green has {step.weight} % of the traffic; evidence counts again")
    return keep_alive(state, at)


def wait_for_evidence(state: State, event: Observed, why: str) -> Transition:
    """Wait without a verdict; after SUSPEND_AFTER_S without evidence green gets no traffic.

    Keep green's share if blue fails more, because the share would go to blue.
    """
    canary = state.canary
    due = canary.evidence.held_s >= SUSPEND_AFTER_S and state.fleet.running and not canary.parked
    if due and (event.blind or not blue_fails_more(state)):
        return route_step(replace(state, rollout=replace(canary, parked=why)))
    noted = canary.parked or state.note.startswith(HELD)
    return keep_alive(state if noted else replace(state, note=f"{HELD}: {why}"), event.at)


def observation_of(state: State, event: Observed, green: RequestCounts) -> Observation:
    """The judge's input for this second; the engine of the first old server stands for blue's."""
    running = state.fleet.running
    sides = {server.name: GREEN for server in state.canary.greens} | {
        server.name: server.name for server in running
    }
    clients = [(sides[name], buckets) for name, buckets in event.clients.items() if name in sides]
    return Observation(
        at=event.at,
        green=green,
        blue={server.name: event.arms.get(server.name, RequestCounts()) for server in running},
        green_engine=event.engines.get(state.canary.green.name),
        blue_engine=event.engines.get(running[0].name) if running else None,
        blind=event.blind,
        unknown_models=_unknown_models(state, event),
        lacking=frozenset(
            adapter.name for green in state.greens for adapter in missing_adapters(state, green)
        ),
        clients=chosen_by_clients(
            clients,
            divide_buckets(state.canary.clients),
            alone=state.canary.plan.steps[state.canary.step].weight >= FULL_WEIGHT,
        ),
    )


def _unknown_models(state: State, event: Observed) -> dict[str, UnknownModel]:
    """The requests of this second that a side refused, of the models that blue serves."""
    names = {name for server in state.fleet.running for name in list_models(server)}

    def count(servers: Iterable[Server], name: str) -> int:
        return sum(event.unknown_models.get(server.name, {}).get(name, 0) for server in servers)

    refused = {name for models in event.unknown_models.values() for name in models} & names
    return {
        name: UnknownModel(count(state.canary.greens, name), count(state.fleet.running, name))
        for name in sorted(refused)
    }


def advance_step(rules: Rules, state: State, at: datetime, why: str) -> Transition:
    """Begin the next step; before the hold step, replace the remaining servers; after it, conclude."""
    canary = state.canary
    last = len(canary.plan.steps) - 1
    if canary.step == last:
        return conclude_canary(rules, state, at, why)
    if canary.step + 1 < last:
        return begin_step(replace(state, note=why), canary.step + 1)
    passed = replace(state, note=why, rollout=replace(canary, passed=True))
    return replace_next(passed, at, why) or begin_step(passed, last)


def conclude_canary(rules: Rules, state: State, at: datetime, why: str) -> Transition:
    """Promote a mitigation, a saving or an operator's change that is not worse; others need a gain."""
    canary = state.canary
    proposal = canary.suggestion.proposal
    gain = rules.judge.gain(
        canary.evidence,
        slo=rules.slo,
        level=canary.level,
        green=canary.green_counts,
        baseline=canary.baseline,
    )
    state = replace(state, rollout=replace(canary, gain=gain, hold_passed=True))
    needless = proposal.mitigation or proposal.cheaper or proposal.rule == PERSON
    if not gain and not needless and canary.plan.gain_needed:
        return roll_back(state, at, f"no measurable gain: {why}", result="no_gain")
    if gain.removeprefix("better: ") not in why or not gain:  # a pass by a gain has told it
        why = f"{why}; {gain or 'no measurable gain, and none is required'}"
    return replace_next(state, at, why) or promote(state, at, why)


def answered_recently(heard_at: datetime | None, now: datetime) -> bool:
    return heard_at is not None and now - heard_at <= timedelta(seconds=FRESH_S)

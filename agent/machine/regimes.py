"""Switches between two settings as the load changes, under one approval. No server starts.

    PROPOSED ─approve─▶ OBSERVING ─the load is of the other regime─▶ TRIAL ─▶ OBSERVING, and so on
      └─ a switch fails, more misses than predicted, too many, abort ─▶ (the values from before)

Each switch is a change of running servers of its own: the present and the new values take turns, and the
verdict decides (hot_trial.py). Only the way back to the values from before the approval needs no trial.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.events import Aborted, Event, Observed
from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.regimes import WORDS, describe_trigger
from flettner.agent.domain.request_counts import NO_REQUESTS
from flettner.agent.domain.rollout import Regimes
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.judge.attainment import allowed_share, baseline_interval, count_missed, goodput_phi
from flettner.agent.machine.canary_begin import begin_canary
from flettner.agent.machine.guard import base_digest
from flettner.agent.machine.hot_knobs import why_not_hot
from flettner.agent.machine.hot_trial import begin_trial, build_change, set_at_once
from flettner.agent.machine.lease import is_due
from flettner.agent.machine.open_suggestions import end_all
from flettner.agent.machine.traffic import expected_rate
from flettner.agent.machine.transitions import (
    IDLE,
    RolloutStart,
    Rules,
    Transition,
    enter_phase,
    sum_counts,
    without_effects,
)
from flettner.vllm_facts.values import Knob, Setting, Value, describe_changes, is_same

AGAIN_AFTER = timedelta(minutes=30)  # a switch that ended without a verdict
RETRY_AFTER = timedelta(minutes=1)  # the way back to the values from before; doubled each time
CHECKED_S, CHECKED_REQUESTS = 600, 200  # that a comparison with the prediction is of, at least
DAY = timedelta(days=1)
NOTHING: Setting = {}


def describe_switching(state: State) -> str:
    """Which approval switches between which settings, and what is in force; empty: none does."""
    regimes = state.switching
    if regimes is None:
        return ""
    values = describe_changes(regimes.values)
    if state.mode == "advise":
        return f"{regimes.id} is to switch by the load, but the mode advise changes nothing: {values} stays"
    now = f"{regimes.id} switches by the load, now {values}"
    return f"{now}: {describe_trigger(regimes.regimes)}; `flettner abort {regimes.id}` ends it"


def begin_regimes(state: State, start: RolloutStart) -> Transition:
    """Keep the approval. The first switch waits until the load has shown which regime it is of."""
    two, blue = start.suggestion.proposal.regimes, state.fleet.running[0]
    if two is None:
        raise AssertionError(f"{start.suggestion.id} has no regimes")
    before = {knob: value_of(blue, knob, _assumed(start.suggestion)) for knob in two.above.values}
    regimes = Regimes(
        id=start.id,
        suggestion=start.suggestion,
        plan=start.plan,
        started_at=start.at,
        phase_since=start.at,
        outcome="promoted",
        why=start.note,
        before=before,
        values=before,
        above=next((up for up in (False, True) if _are_same(two.regime(above=up).values, before)), None),
    )
    state = replace(state, regimes=regimes, rollout=replace(regimes, ended_at=start.at))
    return without_effects(enter_phase(state, Phase.OBSERVING, start.at, start.note))


def value_of(server: Server, knob: Knob, assumed: Setting = NOTHING) -> Value:
    """The value in force; where no flag sets it, that of the server's start, or as `assumed`."""
    value = server.setting.get(knob)
    if value is None and server.hot is not None:
        value = server.hot.start.get(knob)
    return assumed.get(knob) if value is None else value


def count_load(state: State, event: Event) -> State:
    """Note which regime the load is of, and how its requests do under the values for it."""
    regimes = state.switching
    if not isinstance(event, Observed) or regimes is None:
        return state
    above = _regime_of(regimes, event.reading)
    if regimes.above is None and above is not None:
        regimes = replace(
            regimes, above=above, wait_until=event.at + timedelta(seconds=regimes.regimes.lasts_s)
        )
    elif above is None or above is regimes.above:
        regimes = replace(regimes, other_s=max(0, regimes.other_s - 1))
    elif regimes.other_s < regimes.regimes.lasts_s:
        regimes = replace(regimes, other_s=regimes.other_s + 1)
    else:
        regimes = replace(regimes, above=above, other_s=0, counts=NO_REQUESTS, counted_s=0)
    if state.phase in IDLE and _is_settled(state, regimes) and not event.blind:
        if _are_enough(regimes):  # the last second has compared them
            regimes = replace(regimes, counts=NO_REQUESTS, counted_s=0)
        counts = regimes.counts + sum_counts(state.fleet.running, event)
        regimes = replace(regimes, counts=counts, counted_s=regimes.counted_s + 1)
    return replace(state, regimes=regimes)


def _are_enough(regimes: Regimes) -> bool:
    """Whether the counts are compared with the prediction: once, since each look is a chance to err."""
    return regimes.counted_s >= CHECKED_S and count_missed(regimes.counts)[0] >= CHECKED_REQUESTS


def _regime_of(regimes: Regimes, reading: Reading | None) -> bool | None:
    """Whether the load is above; None: it is between the two, or not measured."""
    if reading is None:
        return None
    work, plan = reading.work, regimes.regimes
    tokens = work.prompt_tokens if plan.metric == "prompt_tokens" else work.answer_tokens
    if tokens is None or plan.low <= tokens <= plan.high:
        return None
    return tokens > plan.high


def _is_settled(state: State, regimes: Regimes) -> bool:
    """Whether values other than those from before are in force, under the load that they are for."""
    if regimes.above is None or regimes.other_s or _are_same(regimes.values, regimes.before):
        return False
    return _are_same(regimes.values, regimes.regimes.regime(above=regimes.above).values) and _has(
        state, regimes, regimes.values
    )


def _are_same(values: Setting, other: Setting) -> bool:
    return all(is_same(value, other[knob]) for knob, value in values.items())


def _assumed(approved: Suggestion) -> Setting:
    """The defaults that the values are compared with; a hot limit has that of its server's start."""
    two = approved.proposal.regimes
    return approved.proposal.assumed if two is not None and two.cold else NOTHING


def _has(state: State, regimes: Regimes, values: Setting) -> bool:
    """Whether all servers that run have these values."""
    assumed = _assumed(regimes.suggestion)
    return all(
        is_same(value_of(server, knob, assumed), value)
        for server in state.fleet.running
        for knob, value in values.items()
    )


def follow_load(rules: Rules, state: State, event: Observed) -> Transition | None:
    """Each second without a rollout: note how the last switch ended, or begin the next; None: nothing."""
    noted = _note_end_of_switch(state, event.at)
    moved = _follow(rules, noted, event)
    return without_effects(noted) if moved is None and noted is not state else moved


def _follow(rules: Rules, state: State, event: Observed) -> Transition | None:
    regimes, fleet, at = state.switching, state.fleet, event.at
    if regimes is None or state.mode == "advise" or state.maintenance:
        return None
    if not fleet.running or fleet.exited or fleet.stopped:
        return None
    if regimes.ending:
        return _go_back(rules, state, regimes, at)
    if why := _why_end(rules, state, regimes, at):
        return without_effects(end(state, at, why))
    if _regime_of(regimes, event.reading) is not regimes.above:
        return None  # it was of this regime, and now nobody knows, or it is between the two
    return _switch(rules, state, regimes, at)


def _note_end_of_switch(state: State, at: datetime) -> State:
    """A switch that failed is the end; one without a verdict is tried again later."""
    regimes, change = state.switching, state.rollout
    if regimes is None or not regimes.trial or change is None or change.id != regimes.trial:
        return state
    if change.outcome == "promoted":
        values = {**regimes.values, **change.suggestion.proposal.to}
        noted = replace(regimes, trial="", values=values, counts=NO_REQUESTS, counted_s=0)
        return replace(state, regimes=noted)
    pause, failed = AGAIN_AFTER, regimes.failed
    if regimes.ending:  # each try is an outcome, of which the state keeps the last ones only
        pause, failed = min(pause, RETRY_AFTER * 2 ** min(failed, 5)), failed + 1
    noted = replace(regimes, trial="", wait_until=at + pause, failed=failed)
    waiting = replace(state, regimes=noted)
    undecided = bool(state.outcomes) and state.outcomes[-1].result == "undecided"
    return waiting if undecided or regimes.ending else end(waiting, at, f"{change.id} failed: {change.why}")


def _why_end(rules: Rules, state: State, regimes: Regimes, at: datetime) -> str:
    """Why the approval does not hold any more; empty if it does."""
    if not _has(state, regimes, regimes.values):
        return _why_values_stay(state, regimes)
    plan, number = regimes.regimes, (state.epoch, state.effects.next_number)
    if why := rules.guard.why_out_of_bounds(plan):  # since a reload of the config
        return why
    for regime in () if plan.cold else (plan.below, plan.above):
        if why := why_not_hot(state.fleet.running, regime.values, number):
            return why
    if _are_enough(regimes) and (why := _why_not_as_predicted(rules, state, regimes)):
        return why
    today = _within_a_day(regimes.switches, at)
    if len(today) >= plan.most_switches and _wanted(regimes) is not None:
        return f"the load changed more than {plan.most_switches} times in a day"
    return ""


def _within_a_day(switches: Sequence[datetime], at: datetime) -> tuple[datetime, ...]:
    """Those of the last day; of a clock that was set back since, also later ones, but for more than a day."""
    return tuple(moment for moment in switches if abs(at - moment) < DAY)


def _why_not_as_predicted(rules: Rules, state: State, regimes: Regimes) -> str:
    """Why the share of late requests is neither within the SLO nor as predicted; empty: it is."""
    (of, bad), above = count_missed(regimes.counts), regimes.above
    if above is None:
        return ""
    low, _ = baseline_interval(regimes.counts, goodput_phi(state.traffic.calibration, rules.slo))
    most = max(allowed_share(rules.slo), regimes.regimes.regime(above=above).missed)
    if low <= most:
        return ""
    return (
        f"{bad:,} of {of:,} requests missed the SLO with {describe_changes(regimes.values)}, at most "
        f"{most:.1%} were predicted"
    )


def end(state: State, at: datetime, why: str) -> State:
    """The values from before come back, unless somebody else has changed them or servers cannot take them."""
    regimes = state.switching
    if regimes is None or regimes.ending:
        return state
    stay = _why_values_stay(state, regimes)
    ending = "; ".join(dict.fromkeys(filter(None, (why, stay))))
    regimes = replace(regimes, ending=ending, wait_until=None, ended_at=at if stay else None)
    return replace(state, regimes=regimes, note=f"{regimes.id} ended: {ending}")


def _why_values_stay(state: State, regimes: Regimes) -> str:
    """Why those from before do not come back; empty: they do, or no server runs that could say."""
    names, running = ", ".join(sorted(regimes.values)), state.fleet.running
    if not _has(state, regimes, regimes.values):
        return f"{names} were changed otherwise, and stay"
    if regimes.regimes.cold:
        return f"the values of {names} stay: the servers would have to start again"
    hot = {knob: value for knob, value in regimes.before.items() if value is not None}
    why = why_not_hot(running, hot, (state.epoch, state.effects.next_number)) if running else ""
    return f"the values of {names} stay: {why}" if why else ""


def _go_back(rules: Rules, state: State, regimes: Regimes, at: datetime) -> Transition | None:
    """Put the values from before back, and end when they are, or cannot be; None: not yet."""
    if _has(state, regimes, regimes.before) or _why_values_stay(state, regimes):
        return without_effects(replace(state, regimes=replace(regimes, ended_at=at)))
    if _waits(regimes, at):
        return None
    return _begin(rules, state, regimes, regimes.before, at, f"{regimes.id} ended: {regimes.ending}")


def _waits(regimes: Regimes, at: datetime) -> bool:
    return regimes.wait_until is not None and not is_due(at, regimes.wait_until, AGAIN_AFTER)


def _wanted(regimes: Regimes) -> Setting | None:
    """The values for the present load, if they are not in force; None: they are, or it is not known."""
    if regimes.above is None:
        return None
    values = regimes.regimes.regime(above=regimes.above).values
    return None if _are_same(values, regimes.values) else values


def _switch(rules: Rules, state: State, regimes: Regimes, at: datetime) -> Transition | None:
    values = _wanted(regimes)
    if values is None or regimes.other_s or _waits(regimes, at):
        return None
    if state.phase is Phase.COOLDOWN or state.paused or state.failing or state.fleet.spared:
        return None
    if state.effects.awaited is not None:  # also a check of a suggestion
        return None
    if any(suggestion.approved_by for suggestion in state.suggestions.open):  # a switch would end it
        return None
    if not (rules.windows.is_open(at) or _are_same(values, regimes.before)):
        return None
    longer = "longer" if regimes.above else "shorter"
    plan = regimes.regimes
    limit = plan.high if regimes.above else plan.low
    why = f"{WORDS[plan.metric]} are {longer} than {limit:.0f} tokens: {describe_changes(values)}"
    regimes = replace(regimes, switches=(*_within_a_day(regimes.switches, at), at), wait_until=None)
    return _begin(rules, state, regimes, values, at, why)


def _begin(
    rules: Rules, state: State, regimes: Regimes, values: Setting, at: datetime, why: str
) -> Transition:
    """Begin the change to these values: a trial, or at once where they are those from before.

    A cold one is a rollout as any other, under the preflight of the approval.
    """
    state, number, blue = end_all(state, why), regimes.switched + 1, state.fleet.running[0]
    cold = regimes.regimes.cold
    now = {knob: value_of(blue, knob, _assumed(regimes.suggestion)) for knob in values}
    to = {knob: value for knob, value in values.items() if not is_same(value, now[knob])}
    proposal = replace(regimes.suggestion.proposal, to=to, why=why, expects="", evidence=(), regimes=None)
    switch = replace(
        regimes.suggestion,
        id=f"{regimes.suggestion.id}.{number}",
        proposal=proposal,
        before={knob: now[knob] for knob in to},
        base=base_digest(blue.setting),
        servers=tuple(server.name for server in state.fleet.running),
        rate_rps=expected_rate(state, at),
    )
    start = RolloutStart(
        id=f"{regimes.id}.{number}",
        suggestion=switch,
        plan=regimes.plan,
        at=at,
        note=why,
        gain_needed="if_missed" if regimes.plan.gain_needed else "never",
    )
    if cold:
        state = replace(state, regimes=replace(regimes, switched=number, trial=start.id))
        return begin_canary(rules, state, start)
    change = build_change(rules, state, start)
    at_once = _are_same(values, regimes.before)
    change = replace(change, passed=at_once, why=why if at_once else "")
    state = replace(state, rollout=change, regimes=replace(regimes, switched=number, trial=start.id))
    return (set_at_once if at_once else begin_trial)(state, at, why)


def ends_by(state: State, event: Aborted) -> bool:
    """Whether an operator ends the approval, and no rollout that is under way.

    A switch that is being tried is taken back at once, as every trial; that it was aborted ends the approval.
    """
    regimes, change = state.switching, state.rollout
    if regimes is None or change is None or not regimes.covers(event.rollout):
        return False
    return state.phase is not Phase.TRIAL or change.id != regimes.trial or change.passed


def is_rolling_out(state: State) -> bool:
    """Whether a switch starts servers: its rollout is aborted as any other, which ends the approval."""
    regimes, change = state.switching, state.rollout
    if regimes is None or change is None or not regimes.regimes.cold:
        return False
    return change.id == regimes.trial and change.outcome == "running"


def abort(_: Rules, state: State, event: Aborted) -> Transition:
    """The values from before come back as soon as no other rollout is under way."""
    return without_effects(end(state, event.at, f"aborted by {event.actor}"))

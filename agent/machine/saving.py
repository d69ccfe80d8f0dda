"""SAVING: fewer servers carry the load. The others get no traffic, and stop once a peak went well.

    SAVING ─a peak went well─▶ (each spared server drains and stops) ─▶ OBSERVING
      └─ late, too much load, no peak, failure, abort ─▶ RESTORING (all serve again) ─▶ OBSERVING
    OBSERVING, while a saving is in force ─ the same reasons ─▶ RESTORING ─▶ OBSERVING

A spared server stays up until the trial has passed, so it serves again at once. Replicas of a server cannot
be left without traffic one by one: they end at the begin of the trial. The approval of a saving covers its
end: nobody is asked when the load returns.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.effects import Drain, Effect, Launch, Route, Stop
from flettner.agent.domain.events import (
    Aborted,
    Drained,
    EffectFailed,
    Event,
    Observed,
    Routed,
    ServerLost,
    Stopped,
)
from flettner.agent.domain.fleet import SparedServer
from flettner.agent.domain.load_watch import BIN_S, count_open
from flettner.agent.domain.model import SERVERS, OutcomeResult, Server
from flettner.agent.domain.rollout import Saving
from flettner.agent.domain.state import Phase, State
from flettner.agent.judge.attainment import (
    allowed_share,
    baseline_interval,
    count_missed,
    goodput_phi,
    misses_slo,
)
from flettner.agent.judge.server_health import requests_fail
from flettner.agent.judge.wording import describe_duration
from flettner.agent.machine.adapters import missing_adapters, with_adapters
from flettner.agent.machine.failing import NEW, fails, is_silent
from flettner.agent.machine.lease import keep_alive
from flettner.agent.machine.open_suggestions import end_all
from flettner.agent.machine.restoring import missing_server, recheck_missing, restore
from flettner.agent.machine.routes import route_to
from flettner.agent.machine.traffic import recent_traffic
from flettner.agent.machine.transitions import (
    RolloutStart,
    Rules,
    Transition,
    await_nothing,
    choose_blue,
    enter_phase,
    remember_outcome,
    replace_split,
    request_effect,
    retry_later,
    sum_counts,
    take_number,
    without_effects,
)

LIMIT = 0.9  # of what the remaining servers carry: above it the spared ones start, before requests are late
NEARLY = 0.7  # of the peak's load: a minute of the trial with as much counts as a test
RECENT_MINUTES = 10
MINUTE_S = 60
AT_MOST = timedelta(hours=26)  # of the trial: every day has its peak
FRESH_S = 10.0  # age of a scrape that says how many requests are open
UNSEEN_S = 60  # without counted requests nobody knows whether the load returns


def begin_saving(state: State, start: RolloutStart) -> Transition:
    """Take the traffic of the spared servers away, which stay up."""
    proposal = start.suggestion.proposal
    limits, servers = proposal.saving, int(str(proposal.to[SERVERS]))
    if limits is None:
        raise AssertionError(f"{start.suggestion.id} has no limits of a saving")
    rollout = Saving(
        id=start.id,
        suggestion=start.suggestion,
        plan=start.plan,
        started_at=start.at,
        phase_since=start.at,
        baseline=recent_traffic(state, start.at)[0],
        limits=limits,
        limit_rps=LIMIT * servers * limits.server_rps,
    )
    fleet = replace(state.fleet, spared=choose_spared(state, servers))
    state = enter_phase(replace(state, rollout=rollout, fleet=fleet), Phase.SAVING, start.at, start.note)
    return _route_to_rest(state)


def choose_spared(state: State, servers: int) -> tuple[SparedServer, ...]:
    """What to spare of the running servers, so that `servers` replicas serve on.

    Those come first of which most requests fail, then the last ones.
    """
    fleet = state.fleet
    surplus, spared = fleet.replica_count - servers, {server.name: server for server in fleet.spared}
    last_first = fleet.running[::-1]
    for server in sorted(last_first, key=lambda server: not _fails_most(state, server)):
        leaving = min(surplus, server.replicas)
        if leaving <= 0:
            break
        surplus -= leaving
        before = spared[server.name].replicas if server.name in spared else server.replicas
        keep = server.replicas - leaving
        spared[server.name] = SparedServer(name=server.name, replicas=before, keep=keep)
    return tuple(spared.values())


def _fails_most(state: State, server: Server) -> bool:
    """Whether it fails, or most of its requests do and no other server was there to compare it with."""
    return fails(state, server) or requests_fail(state.health.get(server.name, NEW))


def carriers(state: State) -> tuple[Server, ...]:
    """The servers that serve on, with the replicas that they keep."""
    keeps = {spared.name: spared.keep for spared in state.fleet.spared}
    rest = [replace(s, replicas=min(s.replicas, keeps.get(s.name, s.replicas))) for s in state.fleet.running]
    return tuple(server for server in rest if server.replicas)


def _leaving(state: State) -> tuple[Server, ...]:
    """The spared servers that are still up, without traffic."""
    serving = {server.name for server in carriers(state)}
    return tuple(server for server in state.fleet.running if server.name not in serving)


def _route_to_rest(state: State) -> Transition:
    return request_effect(state, route_to(carriers(state), *_leaving(state)))


def in_force(state: State) -> bool:
    """Whether servers are spared, on trial or for good."""
    return bool(state.fleet.spared) and isinstance(state.rollout, Saving)


def count_load(state: State, event: Event) -> State:
    """Count what the remaining servers answer, by the minute."""
    if not isinstance(event, Observed) or not in_force(state):
        return state
    saving, counts = state.saving, sum_counts(carriers(state), event)
    tests = state.phase is Phase.SAVING and not saving.passed
    settled = tests and state.effects.awaited is None
    watch = saving.watch.add(counts.asked, _count_open(state, event), tested=settled and _is_peak(saving))
    saving = replace(saving, unseen_s=saving.unseen_s + 1 if event.blind else 0, watch=watch)
    if tests:
        saving = replace(saving, exposed=saving.exposed + counts)
    since = saving.minute_since
    if since is None or (tests and not settled):
        return replace(state, rollout=replace(saving, minute=counts, minute_since=event.at))
    if event.at - since < timedelta(seconds=MINUTE_S):
        return replace(state, rollout=replace(saving, minute=saving.minute + counts))
    return replace(
        state, rollout=replace(_end_minute(saving, tests=tests), minute=counts, minute_since=event.at)
    )


def _count_open(state: State, event: Observed) -> int | None:
    engines = [event.engines.get(server.name) for server in carriers(state)]
    return count_open(
        [(each.running, each.waiting) if each and each.age_s <= FRESH_S else None for each in engines]
    )


def _is_peak(saving: Saving) -> bool:
    """Whether the last ten seconds had nearly the load of a peak."""
    arrived = saving.watch.arrived[-BIN_S:]
    return len(arrived) == BIN_S and sum(arrived) >= NEARLY * saving.limits.peak_rps * BIN_S


def _end_minute(saving: Saving, *, tests: bool) -> Saving:
    minute, full = saving.minute, saving.recent_minutes >= RECENT_MINUTES
    saving = replace(
        saving,
        recent=minute if full else saving.recent + minute,
        recent_minutes=1 if full else saving.recent_minutes + 1,
    )
    if not tests or minute.asked < NEARLY * saving.limits.peak_rps * MINUTE_S:
        return saving
    return replace(saving, tested=saving.tested + minute, tested_minutes=saving.tested_minutes + 1)


def observe(rules: Rules, state: State, event: Observed) -> Transition:
    """End the trial where it does harm or meets no peak; else stop the spared servers once it has passed."""
    saving = state.saving
    why, result = why_not_save(rules, state, event.blind)
    if why:
        return put_back(rules, state, event.at, why, result=result)
    if saving.passed or state.effects.awaited is not None:
        return keep_alive(state, event.at)
    if event.at - saving.started_at > AT_MOST:
        least, span = NEARLY * saving.limits.peak_rps, describe_duration(AT_MOST.total_seconds())
        why = f"no load of a peak, {least:.3g} requests/s, within {span}"
        return put_back(rules, state, event.at, why)
    lacks = any(missing_adapters(state, server) for server in carriers(state))  # that a spared one may have
    if lacks or (went := _why_passed(rules, state)) is None:
        return keep_alive(state, event.at)
    passed = replace(saving, passed=True, why=went)
    return _stop_next(replace(state, rollout=passed, note=went))


def why_not_save(rules: Rules, state: State, blind: str = "") -> tuple[str, OutcomeResult]:
    """Why the spared servers are needed, and what that says of the saving; empty if they are not."""
    saving, names = state.saving, {server.name for server in carriers(state)}
    failures = [f"{name} {failure.why}" for name, failure in sorted(state.failing.items()) if name in names]
    if failures:
        return "; ".join(failures), "undecided"
    if saving.minute.asked > saving.limit_rps * MINUTE_S:
        count = sum(server.replicas for server in carriers(state))
        why = (
            f"the load returned: more than {saving.limit_rps:.3g} requests/s, the limit of {count} "
            f"server{'s' if count > 1 else ''}"
        )
        return why, "undecided"
    if why := _why_more_comes(saving):
        return why, "undecided"
    for counts in (saving.minute, saving.recent, saving.tested):
        if misses_slo(state.traffic.calibration, rules.slo, counts):
            of, bad = count_missed(counts)
            silent = any(is_silent(state, server) for server in carriers(state))  # it may hang
            why = f"{bad:,} of {of:,} requests missed the SLO with fewer servers"
            return why, "undecided" if silent else "rolled_back"
    if saving.unseen_s >= UNSEEN_S:
        return f"no request could be counted for {saving.unseen_s} s: {blind}", "undecided"
    return "", "undecided"


def _why_more_comes(saving: Saving) -> str:
    """Why a load that has not ended yet is too much; empty if it is not."""
    if (more := saving.watch.find_excess(saving.limit_rps)) is not None:
        limit = saving.limit_rps
        return f"the load returned: {more[0]} requests came in {more[1]} s, and {limit:.3g}/s is the limit"
    if saving.passed and (backlog := saving.watch.find_backlog()) is not None:
        return f"{backlog[0]:.0f} requests are open, under the load of the peak at most {backlog[1]:.0f} were"
    return ""


def _why_passed(rules: Rules, state: State) -> str | None:
    """How the load of a peak went; None while too little of it was seen, or the SLO is not certainly kept."""
    saving = state.saving
    (of, bad), hold = count_missed(saving.tested), saving.plan.steps[-1]
    if saving.tested_minutes * MINUTE_S < hold.at_least_s or of < hold.requests or not of:
        return None
    _, most = baseline_interval(saving.tested, goodput_phi(state.traffic.calibration, rules.slo))
    if most > allowed_share(rules.slo):
        return None
    return (
        f"fewer servers kept the SLO for {saving.tested_minutes} minutes with nearly the load of the peak: "
        f"{bad:,} of {of:,} requests missed it"
    )


def on_routed(_: Rules, state: State, event: Routed) -> Transition:
    """The split is in force: end the replicas that are spared, or, at the end, the saving is in force."""
    if state.saving.passed:
        return _finish(state, event.at)
    return _shrink_next(await_nothing(state))


def _shrink_next(state: State) -> Transition:
    """End the spared replicas of the next server that keeps others; then the trial counts."""
    whole = {server.name: server for server in state.fleet.running}
    for carrier in carriers(state):
        server = whole[carrier.name]
        if carrier.replicas < server.replicas:
            return request_effect(state, Stop(number=0, server=server, keep=carrier.replicas))
    return without_effects(await_nothing(state))


def _stop_next(state: State) -> Transition:
    """Drain the next spared server; the last split is without all of them."""
    for server in _leaving(state):
        return request_effect(state, Drain(number=0, server=server, deadline_s=state.saving.plan.drain_s))
    return _route_to_rest(state)


def on_drained(_: Rules, state: State, event: Drained) -> Transition:
    """A server with an open request is not stopped: nobody hurries."""
    effect = state.effects.awaited_as(Drain)
    if event.open:
        note = f"{effect.server.name} still has {event.open} open requests"
        return request_effect(replace(state, note=note), effect)
    return request_effect(state, Stop(number=0, server=effect.server))


def on_stopped(_: Rules, state: State, event: Stopped) -> Transition:
    effect = state.effects.awaited_as(Stop)
    state = replace(mark_stopped(state, effect), note=event.how or f"{effect.server.name} has stopped")
    return _stop_next(state) if state.saving.passed else _shrink_next(state)


def mark_stopped(state: State, effect: Stop) -> State:
    fleet, name = state.fleet, effect.server.name
    if effect.keep:
        return replace(state, fleet=fleet.with_replicas(name, effect.keep))
    state = with_adapters(state, name, ())
    return replace(state, fleet=state.fleet.with_stopped(name))


def _finish(state: State, at: datetime) -> Transition:
    saving = replace(state.saving, outcome="promoted", ended_at=at)
    state = replace(await_nothing(state), rollout=saving)
    state = remember_outcome(state, saving.suggestion, at, "promoted", saving.why)
    return without_effects(enter_phase(choose_blue(state), Phase.OBSERVING, at, saving.why))


def put_back(
    rules: Rules,
    state: State,
    at: datetime,
    why: str,
    *,
    result: OutcomeResult = "undecided",
    reason: str = "",
) -> Transition:
    """Let all servers serve again: those that are up at once, the others as soon as they have started.

    `reason`: an operator's text.
    """
    if isinstance(state.effects.awaited, Stop):  # stopped or not, a launch starts it or finds it running
        state = mark_stopped(state, state.effects.awaited)
    saving, whole = state.saving, {spared.name: spared.replicas for spared in state.fleet.spared}
    state = remember_outcome(state, saving.suggestion, at, result, why)
    if saving.outcome == "running":
        saving = replace(saving, outcome="rolled_back", ended_at=at)
    saving = replace(saving, returned_at=at, why=f"{why}: {reason}" if reason else why)
    state = end_all(state, why)
    state = replace(state, rollout=saving, fleet=replace(state.fleet, spared=()))
    short = [server for server in state.fleet.running if server.replicas < whole.get(server.name, 0)]
    if not short and missing_server(state) is not None:
        return _start_all(rules, restore(rules, state, at, why))
    state = enter_phase(choose_blue(state), Phase.RESTORING, at, why)
    if not short:
        return request_effect(state, route_to(state.fleet.running))
    state, meanwhile = replace_split(state, route_to(state.fleet.running))
    server = replace(short[0], replicas=whole[short[0].name])
    state, effects = request_effect(state, Launch(number=0, server=server, deadline_s=rules.plan.start_s))
    more: tuple[Effect, ...] = (meanwhile, *effects)
    return _start_all(rules, (state, more))


def _start_all(rules: Rules, moved: Transition) -> Transition:
    """Start all stopped servers at once. RESTORING awaits one after the other, and finds the rest started."""
    state, effects = moved
    awaited = state.effects.awaited
    awaits = awaited.server.name if isinstance(awaited, Launch) else ""
    for stopped in state.fleet.servers:
        if stopped.name in state.fleet.stopped and stopped.name != awaits:
            state, number = take_number(state)
            server = replace(stopped, adapters=state.fleet.adapters)
            effects = (*effects, Launch(number=number, server=server, deadline_s=rules.plan.start_s))
    return state, effects


def resume_return(rules: Rules, state: State, at: datetime) -> Transition:
    """RESTORING, after a restart of the daemon: those that are up serve, and all others start at once."""
    state, effects = recheck_missing(state, at)
    if not isinstance(state.rollout, Saving) or not isinstance(state.effects.awaited, Launch):
        return state, effects
    if state.fleet.running:
        state, split = replace_split(state, route_to(state.fleet.running))
        effects = (split, *effects)
    return _start_all(rules, (state, effects))


def return_servers(rules: Rules, state: State, event: Observed) -> Transition | None:
    """Outside of its trial, end a saving whose servers are needed; None if they are not."""
    if not in_force(state) or state.mode == "advise" or state.maintenance:
        return None
    why, result = why_not_save(rules, state, event.blind)
    return put_back(rules, state, event.at, why, result=result) if why else None


def on_failed(rules: Rules, state: State, event: EffectFailed) -> Transition:
    """A split and a drain are tried again; a server that cannot be stopped serves again."""
    if isinstance(state.effects.awaited, Route | Drain):
        return without_effects(retry_later(state, event.at, event.why))
    return put_back(rules, state, event.at, event.why)


def on_lost(rules: Rules, state: State, event: ServerLost) -> Transition:
    """A loss ends the saving, but for the exit of a server that is being stopped."""
    if not state.fleet.has(event.server) or event.server == state.effects.stopping:
        return without_effects(state)
    if not event.gone and event.server not in {server.name for server in carriers(state)}:
        return without_effects(state)
    return put_back(rules, state, event.at, f"{event.server}: {event.why}")


def abort(rules: Rules, state: State, event: Aborted) -> Transition:
    """An operator ends the trial, or a saving in force."""
    if not in_force(state):
        return without_effects(state)
    why = f"aborted by {event.actor}"
    return put_back(rules, state, event.at, why, result="aborted", reason=event.reason)


def resume(
    rules: Rules, state: State, at: datetime, names: Sequence[str], changed: Sequence[str]
) -> Transition | None:
    """After a restart of the daemon, or a third party's change; None: the saving goes on, or there is none.

    `names`: of the servers that run. `changed`: those that run with other flags than they were judged with.
    """
    if not in_force(state) or state.maintenance:
        return None
    lost = ", ".join(state.fleet.exited)
    started = ", ".join(name for name in state.fleet.stopped if name in names)
    if lost or started:
        why = f"{lost} was not running" if lost else f"a third party has started {started}"
        return put_back(rules, state, at, why)
    if changed:
        return put_back(rules, state, at, f"a third party has changed the flags of {', '.join(changed)}")
    return None

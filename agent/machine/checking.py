"""CHECKING: the engine runs a preflight of a suggestion before an operator decides on it.

Meanwhile earlier suggestions may be open.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from flettner.agent.domain.effects import Preflight
from flettner.agent.domain.events import EffectFailed, Preflighted
from flettner.agent.domain.model import SERVERS, Forecast, OutcomeResult, Plan, PreflightResult, Proposal
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.upgrade import IMAGE, MODEL, flags_in, start_in
from flettner.agent.judge.attainment import fails_badly
from flettner.agent.machine.default_plan import configured_plan, plan_for
from flettner.agent.machine.earlier_outcomes import was_aborted
from flettner.agent.machine.evidence import is_seen
from flettner.agent.machine.hot_knobs import HOT_FIRST, why_not_hot
from flettner.agent.machine.open_suggestions import (
    MOST,
    by_rank,
    end_suggestion,
    enter_fitting_phase,
    replace_open,
    share_a_knob,
)
from flettner.agent.machine.order import describe_turn
from flettner.agent.machine.start_costs import foresee_start
from flettner.agent.machine.starting import gain_needed, start_rollout
from flettner.agent.machine.suggestion_notes import altering_knobs
from flettner.agent.machine.traffic import expected_rate, recent_traffic
from flettner.agent.machine.transitions import (
    Rules,
    Transition,
    await_nothing,
    enter_phase,
    remember_outcome,
    request_effect,
    without_effects,
)

ANSWER_S = 900.0  # vLLM's own check takes a minute; the engine's deadline is shorter than this
PULL_S = 7200.0  # in addition, of an image: some 10 GB
WITHOUT_GREEN = frozenset({"hot", "save"})  # strategies that start no server of another setting


def check_suggestion(rules: Rules, state: State, suggestion: Suggestion, at: datetime) -> Transition:
    """Request the preflight. Open suggestions stay open meanwhile."""
    number = state.suggestions.last_number + 1
    asked = replace(
        enter_phase(state, Phase.CHECKING, at, suggestion.proposal.why),
        suggestions=replace(state.suggestions, checking=suggestion, last_number=number),
    )
    if SERVERS in suggestion.proposal.to:
        save = Preflight(number=0, servers=state.fleet.running, setting=state.fleet.setting, wanted="save")
        return request_effect(asked, save)
    two = suggestion.proposal.regimes
    switches = two is not None and not two.cold
    if rules.strategy in HOT_FIRST or switches:
        hot = preflight_hot(rules, asked, suggestion)
        if rules.strategy == "hot" or switches or not hot.problem:
            return conclude_preflight(rules, asked, suggestion, hot, at)
    to = suggestion.proposal.to
    asks = Preflight(
        number=0,
        servers=state.fleet.running,
        setting={**state.fleet.setting, **flags_in(to)},
        start=start_in(to),
        wanted=rules.strategy,
    )
    return request_effect(asked, asks)


def preflight_hot(rules: Rules, state: State, suggestion: Suggestion) -> PreflightResult:
    """Whether the servers that run take the change. No request is needed: their records name the knobs."""
    if why := _why_not_hot(rules, state, suggestion):
        return PreflightResult(problem=f'strategy = "hot", but {why}; write strategy = "auto"')
    return PreflightResult(strategy="hot", why="the servers that run take the new values without a restart")


def _why_not_hot(rules: Rules, state: State, suggestion: Suggestion) -> str:
    proposal, number = suggestion.proposal, (state.epoch, state.effects.next_number)
    two = (proposal.regimes.below.values, proposal.regimes.above.values) if proposal.regimes else ()
    whys = (why_not_hot(state.fleet.running, to, number) for to in (proposal.to, *two))
    why = next(filter(None, whys), "")
    if not why and (rules.exam.always or altering_knobs(suggestion.proposal)):
        return "golden prompts compare the answers of two servers"
    return why


def seal_suggestion(
    rules: Rules,
    state: State,
    suggestion: Suggestion,
    preflight: PreflightResult,
    *,
    at: datetime,
    expires_at: datetime,
) -> Suggestion:
    """Open it, or refresh an open one, with the plan and the forecast for the present traffic."""
    recent, recent_s = recent_traffic(state, at)
    rate_rps = expected_rate(state, at)
    failing = fails_badly(recent)
    plan = plan_at(rules, state, suggestion.proposal, preflight, rate_rps=rate_rps, failing=failing)
    forecast = None
    if preflight.strategy not in WITHOUT_GREEN:
        forecast = rules.judge.forecast(
            plan,
            slo=rules.slo,
            recent=recent,
            rate_rps=rate_rps,
            calibration=state.traffic.calibration,
            gain_needed=gain_needed(suggestion.proposal, plan),
        )
    if forecast is not None:
        forecast = foresee_start(
            state, plan, preflight, forecast, recent.asked / recent_s if recent_s else 0.0
        )
    return rules.guard.seal(
        suggestion,
        preflight,
        expires_at=expires_at,
        plan=plan,
        forecast=forecast,
        rate_rps=rate_rps,
        window="; ".join(
            filter(None, [describe_turn(suggestion), rules.windows.foresee(at, likely_s(plan, forecast))])
        ),
    )


def likely_s(plan: Plan, forecast: Forecast | None) -> float:
    """How long nine of ten such rollouts take at most; without a forecast, the least that one takes."""
    return forecast.whole_s[1] if forecast is not None else sum(step.at_least_s for step in plan.steps)


def plan_at(
    rules: Rules,
    state: State,
    proposal: Proposal,
    preflight: PreflightResult,
    *,
    rate_rps: float | None,
    failing: bool,
) -> Plan:
    """The configured plan for this change at this request rate, and for a blue that fails its SLO by far."""
    configured = configured_plan(rules.plan, proposal.to)
    plan = plan_for(configured, preflight, state.fleet.replica_count, rate_rps, failing=failing)
    comparable = MODEL not in proposal.to and not proposal.accepts_other_answers
    examined = preflight.strategy not in WITHOUT_GREEN and (rules.exam.always or altering_knobs(proposal))
    if not examined or not (comparable or rules.exam.command):
        return plan
    return replace(plan, examine_s=rules.exam.at_most_s, compare_answers=comparable)


def on_preflighted(rules: Rules, state: State, event: Preflighted) -> Transition:
    preflight = _note_restart(rules, state, state.checking, event.preflight)
    return conclude_preflight(rules, state, state.checking, preflight, event.at)


def _note_restart(
    rules: Rules, state: State, suggestion: Suggestion, preflight: PreflightResult
) -> PreflightResult:
    """Add why the change needs another server, where those that run have hot knobs."""
    if (
        SERVERS in suggestion.proposal.to
        or rules.strategy not in HOT_FIRST
        or not any(server.hot for server in state.fleet.running)
    ):
        return preflight
    why = _why_not_hot(rules, state, suggestion)
    return replace(preflight, notes=(f"with a restart: {why}", *preflight.notes)) if why else preflight


def conclude_preflight(
    rules: Rules, state: State, suggestion: Suggestion, preflight: PreflightResult, at: datetime
) -> Transition:
    """Propose the checked change; in `auto` mode an auto-class change inside its bounds needs no approval."""
    preflight = _refuse_outage(suggestion, preflight)
    if preflight.problem:
        result: OutcomeResult = "refused" if preflight.lasting else "undecided"
        return without_effects(refuse_suggestion(state, suggestion, at, preflight.problem, result))
    suggestion = _with_resolved(suggestion, preflight)
    if all(suggestion.before.get(name) == new for name, new in suggestion.proposal.to.items()):
        why = "it changes nothing: the servers run with it already"
        return without_effects(refuse_suggestion(state, suggestion, at, why, "undecided"))
    expires_at = at + timedelta(seconds=rules.guard.suggestion_ttl_s)
    sealed = seal_suggestion(rules, state, suggestion, preflight, at=at, expires_at=expires_at)
    opened = replace(state.suggestions, checking=None, open=(sealed, *state.suggestions.open))
    state = enter_phase(await_nothing(replace(state, suggestions=opened)), Phase.PROPOSED, at, "")
    state = replace(make_room(state, sealed), note=sealed.proposal.why)
    still = [sealed] if is_seen(state, sealed, at) else []
    return start_by_itself(rules, state, still, at) or without_effects(state)


def _refuse_outage(suggestion: Suggestion, preflight: PreflightResult) -> PreflightResult:
    """Nobody is asked about a later switch, so none may be an outage."""
    two = suggestion.proposal.regimes
    if two is None or not two.cold or preflight.strategy != "swap" or preflight.problem:
        return preflight
    return replace(preflight, problem=f"each switch would be an outage: {preflight.why}")


def _with_resolved(suggestion: Suggestion, preflight: PreflightResult) -> Suggestion:
    """The change as the engine will carry it out, which is what is approved."""
    if not preflight.resolved:
        return suggestion
    before = {name: present for name, (present, _) in preflight.resolved.items()}
    to = {name: new for name, (_, new) in preflight.resolved.items()}
    proposal = replace(suggestion.proposal, to={**suggestion.proposal.to, **to})
    return replace(suggestion, proposal=proposal, before={**suggestion.before, **before})


def make_room(state: State, sealed: Suggestion) -> State:
    """Rank the new suggestion; it supersedes those that change one of its knobs, or the last of too many."""
    state = replace_open(state, state.suggestions.open)
    for other in state.suggestions.open:
        if other.id != sealed.id and share_a_knob(other, sealed):
            state = end_suggestion(state, other, "superseded", f"{sealed.id} takes its place")
    for last in reversed(state.suggestions.open):
        if len(state.suggestions.open) > MOST and last.id != sealed.id:
            state = end_suggestion(state, last, "superseded", f"{sealed.id} comes before it")
    return state


def has_room(state: State, suggestion: Suggestion) -> bool:
    """Whether one more may be open: in the place of one of its knobs, or as one of the first by rank."""
    others = [other for other in state.suggestions.open if not share_a_knob(other, suggestion)]
    return suggestion in by_rank([*others, suggestion])[:MOST]


def start_by_itself(
    rules: Rules, state: State, still: Iterable[Suggestion], at: datetime
) -> Transition | None:
    """In `auto` mode, start the first of these open suggestions of class `auto` inside its bounds, if any.

    A gated one before it does not stand in its way; it is suggested again afterwards. One whose values an
    operator aborted lately needs an approval.
    """
    if state.mode != "auto" or state.paused or not rules.windows.is_open(at):
        return None
    for suggestion in still:
        if suggestion.plan is None or _will_be_cut_off(rules, suggestion.plan, suggestion.forecast, at):
            continue
        proposal = suggestion.proposal
        bounds = {knob: rules.guard.bounds.get(knob) for knob in proposal.to}
        aborted = was_aborted(state.outcomes, proposal.to, at)
        free = proposal.klass == "auto" and not suggestion.held
        if free and None not in bounds.values() and not aborted:
            allowed = "; ".join(f"{knob} in {b.min}..{b.max}" for knob, b in bounds.items() if b)
            return start_rollout(rules, state, suggestion, at, f"auto mode, inside the bounds {allowed}")
    return None


def _will_be_cut_off(rules: Rules, plan: Plan, forecast: Forecast | None, at: datetime) -> bool:
    """Whether more than one of ten such rollouts would be rolled back because the window closes."""
    closes = rules.windows.closes_at(at, within_s=likely_s(plan, forecast))
    return closes is not None and rules.windows.rolls_back(closes)


def refuse_suggestion(
    state: State, suggestion: Suggestion, at: datetime, why: str, result: OutcomeResult
) -> State:
    state = remember_outcome(state, suggestion, at, result, why, started=False)
    state = end_suggestion(state, suggestion, "refused", why)
    return enter_fitting_phase(state, at, f"{suggestion.id} is refused: {why}")


def on_preflight_failed(_: Rules, state: State, event: EffectFailed) -> Transition:
    """The preflight failed, which is no evidence about the values."""
    return without_effects(refuse_suggestion(state, state.checking, event.at, event.why, "undecided"))


def refuse_late_preflight(state: State, checking: Suggestion, at: datetime) -> State:
    limit_s = ANSWER_S + PULL_S * (IMAGE in checking.proposal.to)
    if at <= checking.made_at + timedelta(seconds=limit_s):
        return state
    why = f"the preflight did not finish within {limit_s:.0f} s"
    return refuse_suggestion(state, checking, at, why, "undecided")

"""The decision logic of one target: one pure function over a small state.

OBSERVING ─suggest─▶ CHECKING ─▶ PROPOSED ─approve─▶ [DRAINING ─▶] LAUNCHING ─▶ WARMING ─▶ CANARY(step)
                        │ no  ◀─another─┤ deny, expire, withdraw                                │ pass
                        ▼               ▼                                                       ▼
                    OBSERVING       OBSERVING  slot by slot: DRAINING ─▶ LAUNCHING ─▶ WARMING ─▶ REPLACING
                                                                                                │ all replaced
Failure, abort or breach, while a rollback is possible:                                         ▼
ROLLING_BACK ─old servers serve─▶ COOLDOWN ─▶ OBSERVING    CANARY(hold) ─pass─▶ PROMOTING ─▶ OBSERVING
A change that needs no restart: PROPOSED ─▶ TRIAL ─▶ OBSERVING (flettner.agent.machine.hot_trial).
Fewer servers: PROPOSED ─▶ SAVING ─▶ OBSERVING (flettner.agent.machine.saving).
A server that flettner started exits: RESTORING ─▶ OBSERVING, or HALTED if none can be started.
In every phase the traffic leaves a server that fails while another one is well (`failover.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Effect, Renewal
from flettner.agent.domain.request_counts import NO_REQUESTS
from flettner.agent.domain.rollout import Canary, HotChange, Saving
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine import (
    adapters,
    answer_check,
    canary_decision,
    checking,
    failing,
    failover,
    hot_knobs,
    hot_trial,
    launching,
    lease,
    open_suggestions,
    order,
    passes,
    promoting,
    proposing,
    recovering,
    regimes,
    replacing,
    restoring,
    rolling_back,
    saving,
    suggesting,
    traffic,
    windows,
)
from flettner.agent.machine.transitions import IDLE, WITHOUT_ROLLOUT, Rules, Transition

Handler = Callable[[Rules, State, Any], Transition]

ASKING = (Phase.OBSERVING, Phase.CHECKING, Phase.PROPOSED)
WAITING = (Phase.CHECKING, Phase.PROPOSED)  # a suggestion may be open
RESTING = (Phase.OBSERVING, Phase.PROPOSED, Phase.COOLDOWN)
MOVING = recovering.MOVING
HANDLED_IN_ADVISE = (e.AgentStarted, e.Paused, e.Resumed)


def _keep_alive(_: Rules, state: State, event: e.Observed) -> Transition:
    return lease.keep_alive(state, event.at)


def _if_hot(hot: Handler, other: Handler) -> Handler:
    """Rolling back has no green to retire where the change was made on running servers."""
    return lambda rules, state, event: (hot if hot_trial.is_hot(state) else other)(rules, state, event)


def _abort_lasting(rules: Rules, state: State, event: e.Aborted) -> Transition:
    """Without a rollout, what goes on under an earlier approval ends: spared servers first."""
    end = saving.abort if saving.in_force(state) else regimes.abort
    return end(rules, state, event)


HANDLERS: Mapping[tuple[Phase, type[e.Event]], Handler] = {
    **{(phase, e.AgentStarted): recovering.on_started for phase in Phase},
    **{(phase, e.Paused): proposing.pause for phase in Phase},
    **{(phase, e.Resumed): proposing.resume for phase in Phase},
    **{(phase, e.PredictionChecked): proposing.record_prediction for phase in Phase},
    **{(phase, e.AppliedChangeCompared): proposing.record_comparison for phase in Phase},
    **{(phase, e.Reconfigured): proposing.reconfigure for phase in WITHOUT_ROLLOUT},
    **{(phase, e.ChangeAsked): proposing.request_change for phase in IDLE},
    **{(phase, e.ServerLost): proposing.on_server_lost for phase in IDLE},
    **{(phase, e.Routed): lease.on_routed for phase in RESTING},
    **{(phase, e.EffectFailed): lease.on_failed for phase in RESTING},
    **{(phase, e.Observed): suggesting.observe for phase in ASKING},
    **{(phase, e.Approved): proposing.approve for phase in WAITING},
    **{(phase, e.Denied): proposing.deny for phase in WAITING},
    (Phase.CHECKING, e.Preflighted): checking.on_preflighted,
    (Phase.CHECKING, e.EffectFailed): checking.on_preflight_failed,
    (Phase.COOLDOWN, e.Observed): proposing.cool_down,
    (Phase.DRAINING, e.Observed): replacing.on_observed,
    (Phase.DRAINING, e.Routed): replacing.on_routed,
    (Phase.DRAINING, e.Drained): lease.on_drained,
    (Phase.DRAINING, e.Stopped): replacing.on_stopped,
    (Phase.DRAINING, e.Examined): answer_check.on_blue_answered,
    (Phase.DRAINING, e.EffectFailed): replacing.on_failed,
    (Phase.DRAINING, e.ServerLost): replacing.on_lost,
    (Phase.DRAINING, e.Aborted): launching.abort,
    (Phase.LAUNCHING, e.Observed): launching.observe_start,
    (Phase.LAUNCHING, e.Launched): launching.on_launched,
    (Phase.LAUNCHING, e.EffectFailed): launching.on_failed,
    (Phase.LAUNCHING, e.ServerLost): launching.on_lost_before_canary,
    (Phase.LAUNCHING, e.Aborted): launching.abort,
    (Phase.WARMING, e.Observed): launching.observe_start,
    (Phase.WARMING, e.Warmed): answer_check.on_warmed,
    (Phase.WARMING, e.Examined): answer_check.on_examined,
    (Phase.WARMING, e.EffectFailed): launching.on_failed,
    (Phase.WARMING, e.ServerLost): launching.on_lost_before_canary,
    (Phase.WARMING, e.Aborted): launching.abort,
    (Phase.CANARY, e.Observed): canary_decision.judge,
    (Phase.CANARY, e.Routed): launching.on_step_routed,
    (Phase.CANARY, e.EffectFailed): launching.on_failed,
    (Phase.CANARY, e.ServerLost): launching.on_lost_in_canary,
    (Phase.CANARY, e.Aborted): launching.abort,
    (Phase.TRIAL, e.Observed): hot_trial.observe,
    (Phase.TRIAL, e.KnobsSet): hot_trial.on_set,
    (Phase.TRIAL, e.EffectFailed): hot_trial.on_failed,
    (Phase.TRIAL, e.ServerLost): hot_trial.on_lost,
    (Phase.TRIAL, e.Aborted): hot_trial.abort,
    **{(phase, e.Aborted): _abort_lasting for phase in IDLE},
    (Phase.SAVING, e.Aborted): saving.abort,
    (Phase.SAVING, e.Observed): saving.observe,
    (Phase.SAVING, e.Routed): saving.on_routed,
    (Phase.SAVING, e.Drained): saving.on_drained,
    (Phase.SAVING, e.Stopped): saving.on_stopped,
    (Phase.SAVING, e.EffectFailed): saving.on_failed,
    (Phase.SAVING, e.ServerLost): saving.on_lost,
    (Phase.REPLACING, e.Observed): replacing.on_observed,
    (Phase.REPLACING, e.Routed): launching.on_joined,
    (Phase.REPLACING, e.EffectFailed): replacing.on_failed,
    (Phase.REPLACING, e.ServerLost): replacing.on_lost,
    (Phase.REPLACING, e.Aborted): launching.abort,
    (Phase.PROMOTING, e.Observed): promoting.on_observed,
    (Phase.PROMOTING, e.Routed): promoting.on_routed,
    (Phase.PROMOTING, e.Drained): lease.on_drained,
    (Phase.PROMOTING, e.Retired): promoting.on_retired,
    (Phase.PROMOTING, e.EffectFailed): promoting.on_failed,
    (Phase.PROMOTING, e.ServerLost): promoting.on_lost,
    (Phase.PROMOTING, e.Aborted): promoting.abort,
    (Phase.ROLLING_BACK, e.Observed): _if_hot(hot_trial.observe_while_back, rolling_back.on_observed),
    (Phase.ROLLING_BACK, e.Routed): rolling_back.on_routed,
    (Phase.ROLLING_BACK, e.Drained): lease.on_drained,
    (Phase.ROLLING_BACK, e.Stopped): rolling_back.on_stopped,
    (Phase.ROLLING_BACK, e.Retired): rolling_back.on_retired,
    (Phase.ROLLING_BACK, e.Launched): rolling_back.on_launched,
    (Phase.ROLLING_BACK, e.KnobsSet): hot_trial.on_back,
    (Phase.ROLLING_BACK, e.EffectFailed): _if_hot(hot_trial.on_back_failed, rolling_back.on_failed),
    (Phase.ROLLING_BACK, e.ServerLost): _if_hot(hot_trial.on_lost_while_back, rolling_back.on_lost),
    (Phase.RESTORING, e.Observed): _keep_alive,
    (Phase.RESTORING, e.Retired): restoring.on_retired,
    (Phase.RESTORING, e.ServerLost): restoring.on_lost,
    (Phase.RESTORING, e.Launched): restoring.on_launched,
    (Phase.RESTORING, e.Routed): restoring.on_routed,
    (Phase.RESTORING, e.EffectFailed): restoring.on_failed,
}
"""Every pair that is handled; tests/unit/machine/test_handlers.py gives the reasons for the rest."""


BEFORE: tuple[Callable[[State, e.Event], State], ...] = (
    open_suggestions.forget_ended,
    order.follow_order,
    adapters.record_adapters,
    failing.assess_servers,
    passes.record_exit,
    passes.count_late_requests,
    passes.count_lost_requests,
    passes.charge_error_budget,
    traffic.remember_traffic,
    saving.count_load,
    regimes.count_load,
    passes.end_retirement,
    passes.record_move,
)
"""What every event changes before the handler sees the state, in this order."""

AFTER: tuple[Callable[[Transition, e.Event], Transition], ...] = (
    passes.withdraw_if_servers_changed,
    passes.drop_routes_to_exited_servers,
    passes.update_addresses_in_route,
    passes.repeat_retirements,
    passes.forget_absent_servers,
    hot_knobs.keep_knobs,
    adapters.keep_adapters,
)
"""What every step corrects in the handler's result, in this order."""


@dataclass(frozen=True, slots=True)
class Machine:
    rules: Rules

    def step(self, state: State, event: e.Event) -> tuple[State, tuple[Effect, ...]]:
        """The next state and the effects that follow from `event`. No clock, no randomness, no I/O."""
        before = state
        if _is_requested_exit(state, event):
            return state, ()
        for update in BEFORE:
            state = update(state, event)
        if _is_suspended(state, event):
            return state, ()
        handler = None if _is_outdated(state, event) else _find_handler(state, event)
        moved = handler(self.rules, state, event) if handler else (state, ())
        if isinstance(event, e.Observed) and moved[0].phase is state.phase:
            moved = windows.leave_at_edge(self.rules, moved[0], event.at) or moved
        for complete in AFTER:
            moved = complete(moved, event)
        return failover.leave_failing_servers(before, moved, event.at)


def _find_handler(state: State, event: e.Event) -> Handler | None:
    handler = HANDLERS.get((state.phase, type(event)))
    if not isinstance(event, e.Aborted) or not regimes.ends_by(state, event):
        return handler
    return handler if handler is not None and regimes.is_rolling_out(state) else regimes.abort


def _is_requested_exit(state: State, event: e.Event) -> bool:
    """A server that flettner has stopped, so that another one takes its slot, exits as requested."""
    return isinstance(event, e.ServerLost) and event.server in state.fleet.stopped


def _is_outdated(state: State, event: e.Event) -> bool:
    """Whether it is the outcome of an effect that is not awaited any more.

    A lease of tried values that could not be renewed is an outcome of their effect, too.
    """
    if not isinstance(event, e.EffectOutcome) or state.effects.is_awaited(event.number):
        return False
    if restoring.joins(state, event):
        return False
    failed, knobs = isinstance(event, e.EffectFailed), state.knobs
    tried = state.phase is Phase.TRIAL and knobs is not None and event.number == knobs.number
    return not (failed and tried)


def _is_suspended(state: State, event: e.Event) -> bool:
    """Advise mode writes nothing, so a rollout that began in another mode is suspended."""
    return state.mode == "advise" and state.phase in MOVING and not isinstance(event, HANDLED_IN_ADVISE)


def state_without_counts(state: State) -> tuple[object, ...]:
    """The state without the counts that grow every second; a change of it is journalled."""
    rollout = state.rollout
    if isinstance(rollout, Canary):
        return (*_lasting(state), *_lasting_of_canary(rollout))
    if isinstance(rollout, Saving):
        return (*_lasting(state), *_lasting_of_saving(rollout))
    return (*_lasting(state), *(_lasting_of_change(rollout) if rollout is not None else ()))


def state_without_recent(state: State) -> tuple[object, ...]:
    """The state without the values that the next minute discards or measures again."""
    return (*_lasting(state), state.rollout)


def _lasting(state: State) -> tuple[object, ...]:
    regimes = state.regimes
    steady = regimes and replace(regimes, other_s=0, counts=NO_REQUESTS, counted_s=0)
    return (*_uncounted(state), steady, replace(state.suggestions, ended=()))


def _all_but(kind: type, *names: str) -> Callable[[Any], tuple[object, ...]]:
    return attrgetter(*(field.name for field in fields(kind) if field.name not in names))


_counts = ("baseline", "exposed", "waits", "clients", "lost")
_uncounted = _all_but(State, "suggestions", "sightings", "traffic", "budget", "health", "rollout", "regimes")
_lasting_of_canary = _all_but(
    Canary, *_counts, "starting", "beside", "green_counts", "blue_counts", "evidence", "step_bad", "heard_at"
)
_lasting_of_change = _all_but(HotChange, *_counts, "trial", "bad")
_lasting_of_saving = _all_but(
    Saving,
    *_counts,
    "minute",
    "minute_since",
    "recent",
    "recent_minutes",
    "tested",
    "tested_minutes",
    "unseen_s",
    "watch",
)


def numbered_effects(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """The effects that are journalled before they are performed. A renewal repeats a journalled one."""
    return tuple(effect for effect in effects if not isinstance(effect, Renewal))

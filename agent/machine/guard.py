"""The operator's limits: what turns a proposal into a suggestion, or refuses it. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches

from flettner.agent.domain.digest import digest
from flettner.agent.domain.lateness import describe_no_need, has_need
from flettner.agent.domain.model import (
    SERVERS,
    Bound,
    Forecast,
    Hold,
    Outcome,
    Plan,
    PreflightResult,
    Proposal,
    Slo,
)
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.regimes import RegimePlan
from flettner.agent.domain.request_counts import NO_SLO
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.upgrade import MODEL, SERVED_NAME, UpgradeLimits, is_upgrade, upgrades_in
from flettner.agent.machine.backlog import why_not_now
from flettner.agent.machine.earlier_outcomes import gained_nothing, why_not_again, why_not_back
from flettner.agent.machine.evidence import no_measurement
from flettner.agent.machine.hot_knobs import why_not_hot
from flettner.agent.machine.suggestion_notes import altering_knobs, notes_of_plan
from flettner.vllm_facts import drafts
from flettner.vllm_facts.knobs import KNOBS, beyond_sense, misfit, tunable
from flettner.vllm_facts.values import GPUS, Knob, Setting, Value, as_number, is_start

REST = timedelta(days=1)  # after an approval to switch between settings has ended
PERSON = "person"  # the rule of a change that an operator requested
PERSON_OCTAVES = 5
"""The largest step of a person's number without a range of the operator's own: 64 to 6400 is a slip."""
LONGEST_VALUE = 80  # characters of a refused value that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRefusal:
    """`gained_nothing`: a rollout of these values ended without a gain, under the present other flags."""

    why: str
    gained_nothing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The operator's limits. `admit` returns a suggestion, with notes on what it changed, or a refusal."""

    bounds: Mapping[Knob, Bound] = field(default_factory=dict)
    cooldown_s: float = 600.0
    suggestion_ttl_s: float = 3600.0
    changes_per_day: int = 8
    hot_changes_per_day: int = 24  # changes of running servers, which are counted apart
    hot: bool = True  # whether running servers may take changes
    hold: Hold | None = None  # how the proxy holds new requests while no server serves
    upgrades: UpgradeLimits = field(default_factory=UpgradeLimits)
    refresh_s: float = 60.0  # an open suggestion gets new numbers, or another value, no more often

    def admit(
        self,
        state: State,
        proposal: Proposal,
        *,
        policy: str,
        at: datetime,
        reading: Reading | None,
        slo: Slo = NO_SLO,
    ) -> Suggestion | ProposalRefusal:
        """Turn a policy's proposal into a suggestion, or refuse it with the reason."""
        if proposal.rule == PERSON:
            return ProposalRefusal(why=f"the rule {PERSON} is reserved for what operators ask for")
        if named := upgrades_in(proposal.to):
            return ProposalRefusal(why=f"{', '.join(named)}: only an administrator asks for an upgrade")
        if why := self._reason_to_wait(state, at, reading) or self._too_many(state, proposal, at):
            return ProposalRefusal(why=why)
        if not proposal.mitigation and (why := state.budget.alarm(slo, at)):
            return ProposalRefusal(why=f"{why}; only mitigations are suggested meanwhile")
        two, saves = proposal.regimes, proposal.cheaper or proposal.saving is not None
        if two is not None and (why := self.why_not_regimes(state, two, at)):
            return ProposalRefusal(why=why)
        optimises = not proposal.mitigation and not saves and two is None
        if optimises and reading is not None and not has_need(reading, slo):
            return ProposalRefusal(why=describe_no_need(reading, slo))
        suggestion = self._suggestion(state, proposal, policy=policy, at=at, stepwise=True)
        if not isinstance(suggestion, Suggestion):
            return suggestion
        if two is not None and suggestion.notes:
            return ProposalRefusal(why="; ".join(suggestion.notes))
        to = suggestion.proposal.to
        if why := why_not_again(state.outcomes, to, at):
            return ProposalRefusal(why=why, gained_nothing=gained_nothing(state.outcomes, to))
        return suggestion

    def why_not_regimes(self, state: State, plan: RegimePlan, at: datetime) -> str:
        """Why servers must not switch between these two settings, or not yet; empty if they may."""
        if state.switching is not None:
            return f"{state.switching.id} switches already"
        ended = state.regimes.ended_at if state.regimes is not None else None
        if ended is not None and at < ended + REST:
            return f"switching ended at {ended:%H:%M} on {ended:%Y-%m-%d}, and rests a day"
        return self.why_out_of_bounds(plan)

    def why_out_of_bounds(self, plan: RegimePlan) -> str:
        """Which values of the two settings the operator does not allow; empty: none."""
        outside = [
            f"{knob}={value}"
            for regime in (plan.below, plan.above)
            for knob, value in regime.values.items()
            if not self.bounds.get(knob, Bound()).allows(value)
        ]
        return f"the bounds do not allow {', '.join(outside)}" if outside else ""

    def admit_asked(
        self, state: State, proposal: Proposal, *, actor: str, at: datetime, slo: Slo = NO_SLO
    ) -> Suggestion | ProposalRefusal:
        """Turn an operator's request into a suggestion, or refuse it with the reason.

        The bounds apply: a value outside them is refused, never changed into another. A step is at most
        PERSON_OCTAVES; cool-down and earlier outcomes do not count. A burning budget adds a note.
        """
        suggestion = self._suggestion(state, proposal, policy=actor, at=at, stepwise=False)
        if isinstance(suggestion, Suggestion):
            suggestion = _with_served_name(suggestion, state.fleet.setting)
        burning = state.budget.alarm(slo, at)
        if isinstance(suggestion, Suggestion) and burning:
            return replace(suggestion, notes=(*suggestion.notes, f"{burning}; a failed change adds to that"))
        return suggestion

    def _reason_to_wait(self, state: State, at: datetime, reading: Reading | None) -> str:
        if why := no_measurement(reading):
            return why
        # A fault needs no stationary load.
        if reading is not None and reading.shift and not reading.incidents:
            return f"{reading.shift}: evidence needs a window without a change"
        if reading is not None and not reading.incidents and (why := why_not_now(reading)):
            return why
        made = [outcome for outcome in state.outcomes if _is_carried_out(outcome)]
        if made and at < made[-1].at + timedelta(seconds=self.cooldown_s):
            return f"cooling down until {made[-1].at + timedelta(seconds=self.cooldown_s):%H:%M:%S}"
        return ""

    def _too_many(self, state: State, proposal: Proposal, at: datetime) -> str:
        """Why there were enough changes of this kind, hot or not; empty if there were not."""
        hot = self.hot and not why_not_hot(
            state.fleet.running, proposal.to, (state.epoch, state.effects.next_number)
        )
        most = self.hot_changes_per_day if hot else self.changes_per_day
        since = at - timedelta(days=1)
        today = [o for o in state.outcomes if _is_carried_out(o) and o.hot is hot and o.at > since]
        if len(today) >= most:
            which = "changes of running servers" if hot else "changes"
            return f"{len(today)} {which} in the last 24 h, at most {most} are allowed"
        return why_not_back(state.outcomes, proposal.to, at, _rate(state)) if hot else ""

    def _suggestion(
        self, state: State, proposal: Proposal, *, policy: str, at: datetime, stepwise: bool
    ) -> Suggestion | ProposalRefusal:
        blue = state.fleet.blue
        if blue is None:
            return ProposalRefusal(why="no server runs that could be changed")
        if why := _blocker(state, proposal):
            return ProposalRefusal(why=why)
        in_force = {**blue.setting, **blue.start, SERVERS: state.fleet.replica_count}
        refusals = [self._refusal(knob, wanted, in_force.get(knob)) for knob, wanted in proposal.to.items()]
        if any(refusals):
            return ProposalRefusal(why="; ".join(filter(None, refusals)))
        to: dict[Knob, Value] = {}
        notes: list[str] = []
        outside: list[str] = []
        for knob, wanted in proposal.to.items():
            now = in_force.get(knob)
            present = proposal.assumed.get(knob) if now is None else now
            value, note = self._clamp_to_bounds(knob, wanted, present, stepwise=stepwise)
            value = now if value == present else value
            if not stepwise:
                outside.append(self._outside(knob, wanted) or note or self._too_far(knob, wanted, present))
            elif note:
                notes.append(note)
            if value != now or (is_start(knob) and knob not in blue.start):  # the engine knows what it was
                to[knob] = value
        if any(outside):
            return ProposalRefusal(why="; ".join(filter(None, outside)))
        if not to:
            asked = ", ".join(f"{k}={v}" for k, v in proposal.to.items())
            return ProposalRefusal(
                why="; ".join(notes) or f"{asked} changes nothing: the server already runs with it"
            )
        return Suggestion(
            id=f"{state.target}-s{state.suggestions.last_number + 1}",
            target=state.target,
            policy=policy,
            proposal=replace(proposal, to=to),
            before={knob: in_force.get(knob) for knob in to},
            base=base_digest(blue.setting),
            servers=tuple(server.name for server in state.fleet.running),
            notes=tuple(notes),
            made_at=at,
            expires_at=at + timedelta(seconds=self.suggestion_ttl_s),
            digest="",
        )

    def seal(
        self,
        suggestion: Suggestion,
        preflight: PreflightResult,
        *,
        expires_at: datetime,
        plan: Plan,
        forecast: Forecast | None,
        rate_rps: float | None = None,
        window: str = "",
    ) -> Suggestion:
        """Open the suggestion with the preflight result, plan, forecast and digest of everything shown.

        A change with a planned outage, or one that may alter answers, is never `auto`. An open suggestion is
        sealed again with its new numbers.
        """
        proposal = suggestion.proposal
        if preflight.strategy == "swap" or altering_knobs(proposal):
            proposal = replace(proposal, klass="gated")
        planned = replace(suggestion, proposal=proposal, preflight=preflight, plan=plan, forecast=forecast)
        planned = replace(planned, window=window)
        return _with_digest(
            replace(
                planned,
                rate_rps=rate_rps,
                notes=(*_limits(suggestion), *notes_of_plan(planned, self.hold)),
                expires_at=expires_at,
                status="open",
            )
        )

    def _refusal(self, knob: Knob, wanted: Value, now: Value) -> str:
        """Why the change is refused rather than clamped; empty if it is not.

        The value of a knob that is not tunable is not shown: it may be a secret. Without a bound drafts may
        become fewer, more or none; their method and model stay the operator's choice.
        """
        if is_upgrade(knob):
            return self.upgrades.refusal(knob, wanted)
        if knob == SERVERS:
            return ""
        if knob == GPUS:
            return f"{GPUS}={wanted} was requested: a server gets free GPUs where a change needs other ones"
        bound = self.bounds.get(knob, Bound())
        if not bound.has_limits and drafts.keeps_method(knob, now, wanted):
            return ""
        if not tunable(knob) and not (bound.has_limits and bound.allows(wanted)):
            why = (
                f"[targets.bounds.{_toml_key(knob)}] does not allow the value"
                if bound.has_limits
                else f"{knob} is not one of the performance knobs that flettner tunes{_similar(knob)}"
            )
            return (
                f"a change of {knob} was requested: {why}; to allow it, list the value in "
                f"[targets.bounds.{_toml_key(knob)}] under `allowed`, or change the server by hand"
            )
        if why := misfit(knob, wanted):
            shown = json.dumps(wanted)[:LONGEST_VALUE]
            return f"{knob}={shown} was requested: {knob} {why}; request such a value"
        if not bound.has_range and (limit := beyond_sense(knob, wanted)):
            return (
                f"{knob}={wanted} was requested, {limit} makes sense on any host; request such a value, or "
                f"set a range in [targets.bounds.{_toml_key(knob)}]"
            )
        return ""

    def _outside(self, knob: Knob, wanted: Value) -> str:
        """By how much a person's number misses the range; empty if it is in it."""
        bound, number = self.bounds.get(knob, Bound()), as_number(wanted)
        if number is None or not bound.has_range or bound.clamp(number) == number:
            return ""
        limit = f"at most {bound.max:g}" if number > bound.clamp(number) else f"at least {bound.min:g}"
        return (
            f"{knob}={wanted} was requested, {limit} is allowed; request such a value, or widen "
            f"[targets.bounds.{_toml_key(knob)}]"
        )

    def _too_far(self, knob: Knob, wanted: Value, now: Value) -> str:
        """By how much a person's number is too far from the present one; empty if it is not, or unknown.

        Bounds of the operator's own allow every step inside them.
        """
        number, current = as_number(wanted), as_number(now)
        if (
            self.bounds.get(knob, Bound()).has_limits
            or not number
            or not current
            or current < 0
            or number < 0
        ):
            return ""
        low, high = Bound(octaves=PERSON_OCTAVES).reach(current)
        if low <= number <= high:
            return ""
        limit = f"at most {high:g}" if number > high else f"at least {low:g}"
        return (
            f"{knob}={wanted} was requested, {limit} is allowed in one change from {now}, a factor of "
            f"{2**PERSON_OCTAVES}; request such a value, or set a range in [targets.bounds.{_toml_key(knob)}]"
        )

    def _clamp_to_bounds(self, knob: Knob, wanted: Value, now: Value, *, stepwise: bool) -> tuple[Value, str]:
        """The nearest allowed value, and a sentence if it differs from the wanted one."""
        bound = self.bounds.get(knob, Bound())
        number, current = as_number(wanted), as_number(now)
        if number is None:
            if bound.allows(wanted):
                return wanted, ""
            if bound.allowed:
                return now, f"{knob}={wanted} is not one of the allowed {list(bound.allowed)}"
            return now, f"{knob}={wanted} is not a number within its bounds {bound.min} to {bound.max}"
        clamped, why = bound.clamp(number), f"the bounds are {bound.min} to {bound.max}"
        if stepwise and current is None:
            return (
                now,
                f"{knob} is not set and its default is unknown: the size of the step cannot be limited",
            )
        if stepwise and current is not None:
            low, high = bound.reach(current)
            if not low <= clamped <= high:
                clamped = min(max(clamped, low), high)
                why = f"one change is at most a factor of {2**bound.octaves:g} from {now}"
        if (nearest := bound.nearest(clamped, current)) != clamped:
            clamped, why = nearest, f"the allowed values are {list(bound.allowed)}"
        if clamped == number:
            return wanted, ""
        if current is not None and (clamped - current) * (number - current) <= 0:
            return now, f"{knob}={wanted} is out of reach from {now}: {why}"
        value = int(clamped) if isinstance(wanted, int) else clamped
        return value, f"{knob}={wanted} was clamped to {value}: {why}"


def _with_served_name(suggestion: Suggestion, in_force: Setting) -> Suggestion:
    """Let another model answer under the name that clients ask for."""
    name, to = in_force.get(MODEL), suggestion.proposal.to
    if MODEL not in to or name is None or SERVED_NAME in {*to, *in_force}:
        return suggestion
    note = f"{SERVED_NAME} is set to {name}, for which clients go on to ask"
    return replace(
        suggestion,
        proposal=replace(suggestion.proposal, to={**to, SERVED_NAME: name}),
        before={**suggestion.before, SERVED_NAME: None},
        notes=(*suggestion.notes, note),
    )


def _is_carried_out(outcome: Outcome) -> bool:
    """Whether the target needs rest after it: not after a change that was refused, or that a person ended."""
    return outcome.started and outcome.result not in {"denied", "aborted", "refused"}


def _rate(state: State) -> float | None:
    return state.traffic.steady.rps if state.traffic.steady is not None else None


def base_digest(setting: Setting) -> str:
    """The digest of the setting that a suggestion was made for."""
    return digest({knob: value for knob, value in setting.items() if value is not None})


def _similar(knob: Knob) -> str:
    near = get_close_matches(knob, [name for name in KNOBS if tunable(name)], n=1)
    return f" (did you mean {near[0]}?)" if near and knob not in KNOBS else ""


def _toml_key(knob: Knob) -> str:
    """The knob as a TOML key."""
    return f'"{knob}"' if "." in knob else knob


def _blocker(state: State, proposal: Proposal) -> str:
    """Why these servers cannot be changed so now; empty if they can."""
    if SERVERS in proposal.to and (proposal.saving is None or len(proposal.to) > 1):
        return f"a change of {SERVERS} comes from [targets.cost] save alone, and with no other change"
    if state.fleet.spared and proposal.saving is None and state.rollout is not None:
        spared = ", ".join(server.name for server in state.fleet.spared)
        end = f"`flettner abort {state.rollout.id}`"
        return f"{spared} is spared: other changes wait until all servers serve ({end})"
    if (switching := state.switching) is not None and (set_ := proposal.to.keys() & switching.before.keys()):
        end = f"`flettner abort {switching.id}`"
        return f"{switching.id} sets {', '.join(sorted(set_))} by the load: end that first ({end})"
    if state.fleet.exited:
        return f"{', '.join(state.fleet.exited)} exited: nothing is changed until it serves again"
    settings = {base_digest(server.setting) for server in state.fleet.running}
    if len(settings) > 1:
        names = ", ".join(server.name for server in state.fleet.running)
        return f"{names} run with different flags: start them with the same flags, or make each a target"
    return ""


def _limits(suggestion: Suggestion) -> tuple[str, ...]:
    """What the guard changed: the notes without the details that a seal added."""
    return suggestion.notes[: max(0, len(suggestion.notes) - len(notes_of_plan(suggestion, None)))]


def _with_digest(suggestion: Suggestion) -> Suggestion:
    """Add the digest of everything that an operator is shown."""
    shown = asdict(suggestion)
    for late in ("digest", "status", "decided_by", "approved_by", "has_turn"):
        del shown[late]
    for name in ("made_at", "expires_at", "refreshed_at"):
        shown[name] = shown[name] and shown[name].isoformat()
    return replace(suggestion, digest=digest(shown))

"""What no policy may pass: between a proposal and a suggestion. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

from agent.domain.digest import digest
from agent.domain.model import Bound, Forecast, Outcome, Plan, PreflightResult, Proposal, Slo
from agent.domain.reading import Reading
from agent.domain.request_counts import NO_SLO
from agent.domain.state import State, Suggestion
from vllm_facts.knobs import alters_outputs, misfit, tunable
from vllm_facts.values import Knob, Setting, Value

PERSON = "person"  # the rule of a change that a person asks for
DENIED_FOR = timedelta(hours=24)  # a person's no is not asked again the same day
ALL = 100  # percent
LONGEST_VALUE = 80  # characters of a value that is refused
MIN_COVERAGE = 0.8  # of the window's seconds with a fresh scrape


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRefusal:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The operator's limits. `admit` says no with a reason, or yes with what it changed."""

    bounds: Mapping[Knob, Bound] = field(default_factory=dict)
    cooldown_s: float = 600.0
    suggestion_ttl_s: float = 3600.0
    changes_per_day: int = 8

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
        """Turn a policy's proposal into a suggestion, or say why not."""
        if why := self._not_now(state, at, reading):
            return ProposalRefusal(why=why)
        if not proposal.mitigation and (why := state.budget.alarm(slo, at)):
            return ProposalRefusal(why=f"{why}; only what relieves that is suggested meanwhile")
        found = self._suggestion(state, proposal, policy=policy, at=at, stepwise=True)
        if isinstance(found, Suggestion) and (why := _earlier_outcome(state.outcomes, found.proposal.to, at)):
            return ProposalRefusal(why=why)
        return found

    def admit_asked(
        self, state: State, proposal: Proposal, *, actor: str, at: datetime, slo: Slo = NO_SLO
    ) -> Suggestion | ProposalRefusal:
        """The same for a person's wish: the bounds hold, the pace (octaves, cool-down, memory) does not.

        Nor does a burning budget stop it: they are told.
        """
        found = self._suggestion(state, proposal, policy=actor, at=at, stepwise=False)
        burning = state.budget.alarm(slo, at)
        if isinstance(found, Suggestion) and burning:
            return replace(found, notes=(*found.notes, f"{burning}; what fails now adds to that"))
        return found

    def _not_now(self, state: State, at: datetime, reading: Reading | None) -> str:
        if reading is None or reading.coverage < MIN_COVERAGE:
            return "no fresh metrics: nothing is suggested on stale or missing numbers"
        if reading.running.high == 0 and reading.waiting.high == 0:
            return "the server is idle: nothing can be learned from it now"
        made = [o for o in state.outcomes if o.result not in {"denied", "refused"}]
        if made and at < made[-1].at + timedelta(seconds=self.cooldown_s):
            return f"cooling down until {made[-1].at + timedelta(seconds=self.cooldown_s):%H:%M:%S}"
        today = [o for o in made if o.at > at - timedelta(days=1)]
        if len(today) >= self.changes_per_day:
            return f"{len(today)} changes in the last 24 h, {self.changes_per_day} are allowed"
        return ""

    def _suggestion(
        self, state: State, proposal: Proposal, *, policy: str, at: datetime, stepwise: bool
    ) -> Suggestion | ProposalRefusal:
        blue = state.blue
        if blue is None:
            return ProposalRefusal(why="no server is known to run: nothing can be changed")
        if why := _blocker(state):
            return ProposalRefusal(why=why)
        barred = [why for knob, wanted in proposal.to.items() if (why := self._barred(knob, wanted))]
        if barred:
            return ProposalRefusal(why="; ".join(barred))
        to: dict[Knob, Value] = {}
        notes: list[str] = []
        for knob, wanted in proposal.to.items():
            now = blue.setting.get(knob)
            present = proposal.assumed.get(knob) if now is None else now
            value, note = self._bounded(knob, wanted, present, stepwise=stepwise)
            value = now if value == present else value
            if note:
                notes.append(note)
            if value != now:
                to[knob] = value
        if not to:
            asked = ", ".join(f"{k}={v}" for k, v in proposal.to.items())
            return ProposalRefusal(why="; ".join(notes) or f"{asked} changes nothing: it is so already")
        return Suggestion(
            id=f"{state.target}-s{state.suggestions + 1}",
            target=state.target,
            policy=policy,
            proposal=replace(proposal, to=to),
            before={knob: blue.setting.get(knob) for knob in to},
            base=base_digest(blue.setting),
            servers=tuple(server.name for server in state.standing),
            notes=tuple(notes),
            made_at=at,
            expires_at=at + timedelta(seconds=self.suggestion_ttl_s),
            digest="",
        )

    def seal(
        self,
        suggestion: Suggestion,
        prospect: PreflightResult,
        *,
        at: datetime,
        plan: Plan,
        forecast: Forecast | None,
    ) -> Suggestion:
        """What a person is shown: with the engine's answer, the plan, and the digest of all of it.

        A planned outage is never `auto`, nor is what may alter the answers.
        """
        proposal = suggestion.proposal
        altering = altering_knobs(proposal)
        if prospect.strategy == "swap" or altering:
            proposal = replace(proposal, klass="gated")
        told = _describe_rollout(prospect, plan, forecast, len(suggestion.servers))
        return _with_digest(
            replace(
                suggestion,
                proposal=proposal,
                prospect=prospect,
                plan=plan,
                forecast=forecast,
                notes=(*suggestion.notes, *told, *_describe_examination(plan, altering)),
                expires_at=at + timedelta(seconds=self.suggestion_ttl_s),
                status="open",
            )
        )

    def _barred(self, knob: Knob, wanted: Value) -> str:
        """Why the change is refused whole, not clamped; empty when it is not.

        The value of a knob that is not tunable is not repeated: it may be a secret.
        """
        bound = self.bounds.get(knob, Bound())
        if not tunable(knob) and not _allows(bound, wanted):
            why = (
                f"[targets.bounds.{_toml_key(knob)}] does not admit the value"
                if bound.allowed or bound.min is not None or bound.max is not None
                else f"{knob} is not one of the performance knobs that trimtab tunes"
            )
            return (
                f"a change of {knob} was asked for: {why}; an operator who wants it names the value in "
                f"[targets.bounds.{_toml_key(knob)}] with `allowed`, or changes the server by hand"
            )
        if why := misfit(knob, wanted):
            shown = json.dumps(wanted)[:LONGEST_VALUE]
            return f"{knob}={shown} was asked for: {knob} {why}; ask for such a value"
        return ""

    def _bounded(self, knob: Knob, wanted: Value, now: Value, *, stepwise: bool) -> tuple[Value, str]:
        """The value nearest to the wanted one that is allowed, and a sentence if it is another."""
        bound = self.bounds.get(knob, Bound())
        number, current = _number(wanted), _number(now)
        if number is None and (bound.min is not None or bound.max is not None):
            return now, f"{knob}={wanted} is no number within its bounds {bound.min} to {bound.max}"
        if number is None:
            if bound.allowed and wanted not in bound.allowed:
                return now, f"{knob}={wanted} is not one of the allowed {list(bound.allowed)}"
            return wanted, ""
        why = f"the bounds are {bound.min} to {bound.max}"
        clamped = _clamp(number, bound.min, bound.max)
        if stepwise and current is None:
            return now, f"{knob} is not given, and its present value is not known: no step can be measured"
        if stepwise and current:
            near = _clamp(clamped, current / 2**bound.octaves, current * 2**bound.octaves)
            if near != clamped:
                clamped, why = near, f"one step is at most {bound.octaves:g} octave(s) from {now}"
        if bound.allowed and clamped not in bound.allowed:
            clamped, why = (
                _nearest_allowed(clamped, current, bound.allowed),
                f"the allowed are {list(bound.allowed)}",
            )
        if clamped == number:
            return wanted, ""
        if current is not None and (clamped - current) * (number - current) <= 0:
            return now, f"{knob}={wanted} is out of reach from {now}: {why}"
        value = int(clamped) if isinstance(wanted, int) else clamped
        return value, f"{knob}={wanted} was clamped to {value}: {why}"


def altering_knobs(proposal: Proposal) -> tuple[Knob, ...]:
    """The knobs of the proposal that may change the model's answers."""
    return tuple(knob for knob in proposal.to if alters_outputs(knob))


def base_digest(setting: Setting) -> str:
    """The digest that ties a suggestion to the setting it was made for."""
    return digest({knob: value for knob, value in setting.items() if value is not None})


def _allows(bound: Bound, value: Value) -> bool:
    """Whether the operator's table allows exactly this value. True is not 1, and "1" is not 1."""
    listed = any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in bound.allowed)
    if bound.min is None and bound.max is None:
        return listed
    number = _number(value)
    within = number is not None and _clamp(number, bound.min, bound.max) == number
    return within and (listed or not bound.allowed)


def _toml_key(knob: Knob) -> str:
    """The knob as a key of TOML."""
    return f'"{knob}"' if "." in knob else knob


def _number(value: Value) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _nearest_allowed(value: float, current: float | None, allowed: tuple[Value, ...]) -> float:
    """The allowed number nearest to the value that is no further away than it; the current one if none is."""
    numbers = [number for number in map(_number, allowed) if number is not None]
    if current is None:
        return min(numbers, key=lambda number: abs(number - value), default=value)
    low, high = min(value, current), max(value, current)
    return min((n for n in numbers if low <= n <= high), key=lambda n: abs(n - value), default=current)


def _clamp(value: float, low: float | None, high: float | None) -> float:
    raised = value if low is None else max(value, low)
    return raised if high is None else min(raised, high)


def _earlier_outcome(outcomes: tuple[Outcome, ...], to: Mapping[Knob, Value], at: datetime) -> str:
    """Why these values must not be tried again; empty when they may."""
    for outcome in reversed(outcomes):
        if outcome.result == "undecided" or not any(k in to and to[k] == v for k, v in outcome.to.items()):
            continue
        if outcome.result == "promoted":
            return ""  # whatever was before: it served since
        tried = ", ".join(f"{k}={v}" for k, v in outcome.to.items())
        if outcome.result == "refused":
            return f"{tried} is not taken by vLLM: {outcome.why}"
        if outcome.result != "denied":
            return f"{tried} was tried and {outcome.result.replace('_', ' ')}: {outcome.why}"
        if at < outcome.at + DENIED_FOR:
            return f"{tried} was denied: {outcome.why}"
    return ""


def _blocker(state: State) -> str:
    """Why no change can be made of these servers; empty when one can."""
    if state.gone:
        return f"{', '.join(state.gone)} is gone: nothing is changed until it serves again"
    settings = {base_digest(server.setting) for server in state.standing}
    if len(settings) > 1:
        names = ", ".join(server.name for server in state.standing)
        return f"{names} run with different flags: start them with the same ones, or make each a target"
    return ""


def _describe_rollout(
    prospect: PreflightResult, plan: Plan, forecast: Forecast | None, servers: int
) -> tuple[str, ...]:
    """How it will be done and how long that takes, in sentences."""
    start = "" if prospect.start_s is None else f"a start takes about {prospect.start_s:.0f} s; "
    said = [f"{prospect.strategy}: {prospect.why}"] if prospect.why else []
    if prospect.outage_s:
        said.append(
            f"a planned outage of about {prospect.outage_s:.0f} s, after at most {plan.drain_s:.0f} s in"
            " which open requests end; who asks meanwhile is told to come again (503, Retry-After)"
        )
    if servers > 1:
        said.append(f"{servers} servers, one after the other")
    said.append(start + (_describe_forecast(forecast, plan) if forecast else _describe_minimum(plan)))
    return (*said, *prospect.notes)


def _describe_minimum(plan: Plan) -> str:
    least_s = sum(step.at_least_s for step in plan.steps)
    return f"a rollout takes at least {least_s:.0f} s after green is up; without traffic it is never known"


def _describe_forecast(forecast: Forecast, plan: Plan) -> str:
    """Before anybody approves: how long until it is known what the change does."""
    held = plan.steps[-1].weight
    share = "all traffic" if held >= ALL else f"{held} % of the traffic, one old server the rest,"
    said = (
        f"at {forecast.rate_rps:.3g} requests/s it is known after about {forecast.usual_s:.0f} s of canary "
        f"(nine of ten take less than {forecast.likely_s:.0f} s) that green is not worse, then it holds "
        f"{share} for {forecast.hold_s:.0f} s"
    )
    if not forecast.too_long:
        return said
    weights = " and ".join(f"{weight} %" for weight in forecast.too_long)
    fit = forecast.fitting_margin
    fix = f"; a margin of {fit:g} instead of {plan.margin:g} would fit" if fit else ""
    return f"{said}; the limit at {weights} is too short for that: it may be taken back undecided{fix}"


def _describe_examination(plan: Plan, altering: tuple[Knob, ...]) -> tuple[str, ...]:
    """What comes before the canary, where answers may change."""
    if not plan.examine_s:
        return ()
    may = f"{', '.join(altering)} may alter the answers: " if altering else ""
    return (f"{may}green's to the golden prompts are compared with blue's before it gets any traffic",)


def _with_digest(suggestion: Suggestion) -> Suggestion:
    """With the digest of everything that a person is shown."""
    shown = asdict(suggestion)
    for late in ("digest", "status", "decided_by"):
        del shown[late]
    shown["made_at"], shown["expires_at"] = suggestion.made_at.isoformat(), suggestion.expires_at.isoformat()
    return replace(suggestion, digest=digest(shown))

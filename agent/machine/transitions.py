"""Transitions that several phases share: request an effect, enter a phase, remember an outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.effects import Awaited, Effect, Launch, Retire, Route, SetKnobs
from flettner.agent.domain.events import Observed, ServerLost
from flettner.agent.domain.fleet import Split
from flettner.agent.domain.model import Outcome, OutcomeResult, Plan, Server, Slo, Strategy
from flettner.agent.domain.ports import Context, Policy
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.regimes import RegimeAdvice
from flettner.agent.domain.request_counts import NO_REQUESTS, RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.verdict import Judge
from flettner.agent.domain.windows import Windows
from flettner.agent.machine.earlier_outcomes import DENIED_FOR
from flettner.agent.machine.guard import Guard
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from flettner.vllm_facts.metrics.names import CPU_CACHE
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import runs_on_cpus
from flettner.vllm_facts.sizing.gpus import NO_GPU, find_gpu

IDLE = (Phase.OBSERVING, Phase.CHECKING, Phase.PROPOSED, Phase.COOLDOWN)
WITHOUT_ROLLOUT = (*IDLE, Phase.RESTORING, Phase.HALTED)  # nothing that was approved is carried out
Transition = tuple[State, tuple[Effect, ...]]
LONGEST_PAUSE = timedelta(seconds=30)
REMEMBERED = 200  # outcomes kept in the state; the journal has them all
BY_OPERATOR = ("denied", "aborted")
DENIALS = 50  # denials and aborts kept at most, so that they leave room for the outcomes of rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The configuration of the machine: the same for as long as a rollout runs."""

    plan: Plan
    judge: Judge
    slo: Slo = field(default_factory=Slo)
    guard: Guard = field(default_factory=Guard)
    policies: Sequence[tuple[str, Policy]] = ()
    strategy: Strategy | Literal["auto"] = "auto"
    restart_after_s: float | None = None  # a server of ours that hangs is started again; None: never
    exam: GoldenPromptOptions = field(default_factory=GoldenPromptOptions)
    windows: Windows = field(default_factory=Windows)  # when rollouts may start
    gpu_hour: float | None = None  # price of a GPU for an hour; None: no money is shown
    cards: Mapping[str, float] = field(default_factory=dict)  # the same of other cards that are to be had
    saves: bool = False  # whether fewer servers or GPUs may be suggested
    gpu: str = ""  # the model of the servers' GPUs, or NO_GPU, where no sensor sees it

    def context(self, state: State, event: Observed) -> Context | None:
        """The policies' input besides the reading; None while no server is known."""
        blue = state.fleet.blue
        if blue is None:
            return None
        return Context(
            setting=blue.setting,
            slo=self.slo,
            bounds=self.guard.bounds,
            outcomes=state.outcomes,
            config=describe_serve_config(blue, event.reading, self.gpu),
            findings=event.findings,
            model_search=event.model_search,
            strategy=self.strategy,
            headroom=event.headroom if self.saves else None,
            peak_rps=event.peak_rps,
            kv_peak=event.kv_peak,
            regimes=self._advised_regimes(state, event),
            servers=state.fleet.replica_count,
            saves=self.saves,
        )

    def _advised_regimes(self, state: State, event: Observed) -> RegimeAdvice | None:
        """None also where the guard would refuse them: a rule that yields to them would wait for nothing."""
        advice = event.regimes
        refused = advice is not None and self.guard.why_not_regimes(state, advice.plan, event.at)
        return None if refused else advice


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStart:
    """What an approval, or a switch between regimes, begins."""

    id: str
    suggestion: Suggestion
    plan: Plan
    at: datetime
    note: str
    gain_needed: GainNeeded


def find_gpu_model(state: State, reading: Reading | None, given: str) -> str:
    """The model of the GPUs of the servers in force, or NO_GPU; empty: not known, or several models.

    `given`: as the operator wrote it, where none was measured.
    """
    blue = state.fleet.blue
    if blue is None:
        return ""
    config = describe_serve_config(blue, reading, given)
    if runs_on_cpus(config):
        return NO_GPU
    return _gpu_names(reading, given).pop() if config.card is not None else ""


def _gpu_names(reading: Reading | None, given: str) -> set[str]:
    """As measured, else as given."""
    measured = {gpu.name for gpu in reading.gpus} if reading else set[str]()
    return measured or ({given} if given else set())


def describe_serve_config(server: Server, reading: Reading | None, gpu: str = "") -> ServeConfig:
    """What is known of a running server: its flags, and the version and GPUs that were measured.

    `gpu`: as the operator wrote it, where none was measured. A server on CPUs has none of the host's GPUs.
    """
    setting, gpu = server.setting, gpu or (NO_GPU if server.on_cpus else "")
    names = _gpu_names(reading, gpu)
    facts = reading.facts if reading else {}
    bare = ServeConfig(
        setting=setting,
        model=find_model(str(setting.get("model", ""))),
        version=facts.get("version", ""),
        on_cpus=gpu == NO_GPU or facts.get(CPU_CACHE, "").isdecimal(),
    )
    if len(names) != 1 or runs_on_cpus(bare):
        return bare
    return replace(bare, card=find_gpu(names.pop()))


def without_effects(state: State) -> Transition:
    return state, ()


def request_effect(state: State, effect: Awaited) -> Transition:
    """Number the effect and await its outcome instead of the earlier effect's."""
    numbered = replace(effect, number=state.effects.next_number)
    if isinstance(numbered, Launch | Retire):
        numbered = replace(numbered, server=replace(numbered.server, adapters=state.fleet.adapters))
    if isinstance(numbered, Route):
        state = replace(state, split=Split(route=numbered))
    if isinstance(numbered, SetKnobs):
        numbered = replace(numbered, epoch=state.epoch)
        state = replace(state, knobs=numbered)
    return replace(state, effects=state.effects.await_effect(numbered)), (numbered,)


def await_nothing(state: State) -> State:
    return replace(state, effects=state.effects.await_nothing())


def take_number(state: State) -> tuple[State, int]:
    """Number an effect that is not awaited."""
    number = state.effects.next_number
    return replace(state, effects=replace(state.effects, last_number=number)), number


def replace_split(state: State, route: Route) -> tuple[State, Route]:
    """Number a split that takes the place of the last one, without awaiting it; a failover ends."""
    state, number = take_number(state)
    numbered = replace(route, number=number)
    return replace(state, split=Split(route=numbered)), numbered


def repeat_effect(state: State) -> Transition:
    """Request the awaited effect again, under a new number."""
    awaited = state.split.intended if isinstance(state.effects.awaited, Route) else state.effects.awaited
    return without_effects(state) if awaited is None else request_effect(state, awaited)


def add_retirement(moved: Transition, server: Server) -> Transition:
    """Retire a server outside the rollout. The request is repeated until it is done."""
    state, effects = moved
    state, number = take_number(state)
    extra = Retire(number=number, server=replace(server, adapters=state.fleet.adapters))
    rest = tuple(effect for effect in state.fleet.retiring if effect.server.name != server.name)
    return replace(state, fleet=replace(state.fleet, retiring=(*rest, extra))), (*effects, extra)


def name_next_server(state: State) -> tuple[State, str]:
    number = state.fleet.last_number + 1
    return replace(state, fleet=replace(state.fleet, last_number=number)), f"{state.target}-r{number}"


def enter_phase(state: State, phase: Phase, at: datetime, note: str) -> State:
    rollout = replace(state.rollout, phase_since=at) if state.rollout else None
    effects = replace(state.effects, tries=0)
    return replace(state, phase=phase, rollout=rollout, until=None, effects=effects, note=note)


def enter_cooldown(rules: Rules, state: State, at: datetime, note: str) -> Transition:
    """Let the target rest after a rollback."""
    state = enter_phase(state, Phase.COOLDOWN, at, note)
    return without_effects(replace(state, until=at + timedelta(seconds=rules.guard.cooldown_s)))


def retry_later(state: State, at: datetime, why: str) -> State:
    """Retry the awaited effect after a pause that doubles: up to 30 s, for a route or for knobs up to 4 s."""
    longest = timedelta(seconds=4) if isinstance(state.effects.awaited, Route | SetKnobs) else LONGEST_PAUSE
    tries = state.effects.tries
    pause = min(timedelta(seconds=2 ** min(tries, 6)), longest)
    return replace(state, effects=replace(state.effects, retry_at=at + pause, tries=tries + 1), note=why)


def remember_outcome(
    state: State,
    suggestion: Suggestion,
    at: datetime,
    result: OutcomeResult,
    why: str,
    *,
    started: bool = True,
) -> State:
    """Add the outcome of a suggestion; drop denials and aborts after DENIED_FOR.

    `why`: short and without the texts of operators, because every later state in the journal repeats it.
    """
    proposal = suggestion.proposal
    outcome = Outcome(
        at=at, result=result, to=proposal.to, before=suggestion.before, why=why, started=started
    )
    if suggestion.preflight.strategy == "hot":
        outcome = replace(outcome, hot=True, rate_rps=suggestion.rate_rps)
    lasting = [o for o in state.outcomes if o.result not in BY_OPERATOR or at < o.at + DENIED_FOR]
    oldest = {id(o) for o in [o for o in (*lasting, outcome) if o.result in BY_OPERATOR][:-DENIALS]}
    return replace(state, outcomes=tuple(o for o in (*lasting, outcome) if id(o) not in oldest)[-REMEMBERED:])


def sum_counts(servers: Sequence[Server], event: Observed) -> RequestCounts:
    return sum((event.arms.get(server.name, NO_REQUESTS) for server in servers), NO_REQUESTS)


def count_exposed(state: State, event: Observed) -> State:
    """Count the requests of the canary's servers as exposed, until the outcome is known."""
    canary = state.canary
    names = {canary.server, *(server.name for server in canary.greens)}
    new = sum((event.arms.get(name, NO_REQUESTS) for name in names), NO_REQUESTS)
    return replace(state, rollout=replace(canary, exposed=canary.exposed + new)) if new.asked else state


def can_serve(state: State, canary: Canary) -> bool:
    """Whether green is up, as far as is known, and routed: it could carry all traffic at once."""
    green = canary.newest
    return (
        green is not None
        and bool(green.address)
        and green.name not in state.fleet.exited
        and green.name in state.split.weights
        and not canary.hung
    )


def is_green(canary: Canary, event: ServerLost) -> bool:
    """Whether it is the newest of the new servers."""
    return canary.newest is not None and event.server == canary.newest.name


def choose_blue(state: State) -> State:
    """Make a running server blue, if there is one: traffic returns to blue."""
    return replace(state, fleet=state.fleet.with_running_blue())

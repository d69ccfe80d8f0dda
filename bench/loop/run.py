"""What one run of a world was: suggestions, rollouts, shares of the traffic, and every request."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench.loop.world import World
from flettner.agent.audit.history import History
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.vllm_facts.values import Knob, Setting, Value
from tests.support.virtual_server import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuggestion:
    """A suggestion. Times in seconds since the begin of the load; negative: before it."""

    id: str
    rule: str
    klass: str
    at_s: float
    before: Mapping[Knob, Value]
    to: Mapping[Knob, Value]
    in_force: Setting  # the full setting that it was made for
    why: str
    approved_s: float | None = None
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRollout:
    """A rollout. `exposed`, `bad`: requests that green served, and of those failed or late."""

    id: str
    suggestion: str
    to: Mapping[Knob, Value]
    began_s: float
    ended_s: float | None
    outcome: str
    why: str
    exposed: int
    bad: int
    forecast_s: (
        tuple[float, float] | None
    )  # usual and nine of ten, with the hold step; with the start if known
    canary_s: float | None  # from the first share of green to the end; with the start if that was forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`shares`: since when which part of the traffic had which setting, in percent by server."""

    world: str
    seed: int
    suggestions: tuple[RunSuggestion, ...]
    rollouts: tuple[RunRollout, ...]
    shares: tuple[tuple[float, Mapping[str, int]], ...]
    settings: Mapping[str, Setting]  # by server
    ended: tuple[Ended, ...]  # times as in `shares`
    sent: int
    notes: tuple[tuple[float, str], ...]
    cpu_s: float
    servers: tuple[tuple[float, int], ...] = ()  # since when how many run, of those that are not spared


@dataclass(slots=True, kw_only=True)
class Books:
    """The events of a run, by the states that a daemon recorded; in seconds of one clock."""

    approved: dict[str, float] = field(default_factory=dict)  # by suggestion
    history: History = field(default_factory=History)
    _made: dict[str, tuple[float, Setting]] = field(default_factory=dict)  # suggestions; the setting in force
    _rolling: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)
    _results: dict[str, str] = field(default_factory=dict)  # of rollouts
    _settings: dict[str, Setting] = field(default_factory=dict)  # by server and its settings so far
    _labels: dict[str, str] = field(default_factory=dict)  # by server: the key of its present setting
    _shares: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    _notes: list[tuple[float, str]] = field(default_factory=list)
    _servers: list[tuple[float, int]] = field(default_factory=list)

    def add_state(self, state: State, at_s: float) -> None:
        self.history.add_state(state)
        for suggestion in self.history.suggestions():
            if suggestion.id not in self._made and suggestion.status != "checking":
                setting = state.fleet.blue.setting if state.fleet.blue else {}
                self._made[suggestion.id] = at_s, dict(setting)
        for server in state.servers:
            self._add_setting(server.name, server.setting)
        rollout = state.rollout
        if rollout is not None:
            began_s, shared_s, ended_s = self._rolling.get(rollout.id, (at_s, None, None))
            if state.phase is Phase.CANARY and state.canary.step_since is not None and shared_s is None:
                shared_s = at_s
            if rollout.outcome != "running" and ended_s is None:
                ended_s = at_s
                self._results[rollout.id] = state.outcomes[-1].result if state.outcomes else rollout.outcome
            self._rolling[rollout.id] = (began_s, shared_s, ended_s)
        count = len(state.fleet.running)
        if not self._servers or self._servers[-1][1] != count:
            self._servers.append((at_s, count))
        note = f"{state.phase.value}: {state.note}"
        if not self._notes or self._notes[-1][1] != note:
            self._notes.append((at_s, note))

    def add_shares(self, weights: Mapping[str, int], at_s: float) -> None:
        shares = {self._labels.get(name, name): weight for name, weight in weights.items()}
        if not self._shares or self._shares[-1][1] != shares:
            self._shares.append((at_s, shares))

    def _add_setting(self, server: str, setting: Setting) -> None:
        """Note the setting of a server. For the score, a server with changed limits is another server."""
        label = self._labels.setdefault(server, server)
        if not self._settings.get(label):
            self._settings[label] = dict(setting)
        elif self._settings[label] != setting:
            self._labels[server] = label = f"{server} {len(self._settings)}"
            self._settings[label] = dict(setting)

    def close(
        self, world: World, seed: int, *, began_s: float, ended: list[Ended], sent: int, cpu_s: float
    ) -> Run:
        """`began_s`: the begin of the load, from which all times of the run count."""
        suggestions = {made.id: made for made in reversed(self.history.suggestions())}

        def since(at_s: float) -> float:
            return round(at_s - began_s, 1)

        return Run(
            world=world.name,
            seed=seed,
            suggestions=tuple(
                self._describe_suggestion(made, began_s)
                for made in suggestions.values()
                if made.id in self._made
            ),
            rollouts=tuple(self._describe_rollouts(began_s)),
            shares=tuple((since(at_s), weights) for at_s, weights in self._shares),
            settings=self._settings,
            ended=tuple(
                replace(request, arrived_s=request.arrived_s - began_s, ended_s=request.ended_s - began_s)
                for request in ended
            ),
            sent=sent,
            notes=tuple((since(at_s), note) for at_s, note in self._notes),
            cpu_s=round(cpu_s, 1),
            servers=tuple((since(at_s), count) for at_s, count in self._servers),
        )

    def _describe_suggestion(self, suggestion: Suggestion, began_s: float) -> RunSuggestion:
        made_s, in_force = self._made[suggestion.id]
        return RunSuggestion(
            id=suggestion.id,
            rule=suggestion.proposal.rule,
            klass=suggestion.proposal.klass,
            at_s=round(made_s - began_s, 1),
            before=dict(suggestion.before),
            to=dict(suggestion.proposal.to),
            in_force=in_force,
            why=suggestion.proposal.why,
            approved_s=_since(began_s, self.approved.get(suggestion.id)),
            status=suggestion.status,
        )

    def _describe_rollouts(self, began_s: float) -> list[RunRollout]:
        rollouts = []
        for _, rollout in reversed(self.history.rollouts()):
            started_s, shared_s, ended_s = self._rolling[rollout.id]
            suggestion = rollout.suggestion
            forecast = suggestion.forecast
            rollouts.append(
                RunRollout(
                    id=rollout.id,
                    suggestion=suggestion.id,
                    to=dict(suggestion.proposal.to),
                    began_s=round(started_s - began_s, 1),
                    ended_s=_since(began_s, ended_s),
                    outcome=self._results.get(rollout.id, "running"),
                    why=rollout.why,
                    exposed=rollout.exposed.asked,
                    bad=rollout.bad_exposed,
                    forecast_s=forecast.whole_s if forecast else None,
                    canary_s=_lasted_s(started_s if forecast and forecast.start else shared_s, ended_s),
                )
            )
        return rollouts


def _lasted_s(began_s: float | None, ended_s: float | None) -> float | None:
    return None if began_s is None or ended_s is None else round(ended_s - began_s, 1)


def _since(began_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s - began_s, 1)

"""The invariants of savings and of switches between two settings: docs/cost.md, docs/live-limits.md.

They use no code of the machine, only the world, the journal and what was promised.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from flettner.agent.domain.model import SERVERS
from flettner.agent.domain.rollout import Regimes, Rollout, Saving
from flettner.agent.domain.state import State
from tests.simulation.load import CAP, LASTS_S, MOST_COLD_SWITCHES, MOST_SWITCHES, PEAK_RPS

if TYPE_CHECKING:
    from tests.simulation.observer import Observer, Written

LAG_S = 2.0  # of the window over which lengths are averaged
OLD_S, KNOWN_S = 7, 60  # the last seconds in which lengths are of now, and that are known
RETURNS_S = 25.0  # from more load than the rest carries to the end of the saving: 150 s, scaled
JOINS_S = 25.0  # until a healthy one has traffic: an answer may be lost
HELD_S = 65.0  # until a call that hangs has an end, and what follows it
STARTS_S = 60.0  # until the servers that were spared serve again, one launch may hang meanwhile
STATES = cache(lambda: TypeAdapter(State))


@dataclass(repr=False, slots=True)
class LoadObserver:
    """`observer`: of the history, which has the violations."""

    observer: "Observer"
    switches: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)
    """When an approval switched, and whether to the setting above."""
    switched: set[str] = field(default_factory=set)  # rollouts that the journal calls switches
    regimes: Regimes | None = None  # the latest approval to switch
    last: Rollout | None = None
    caps: frozenset[object] = frozenset()  # of the fleet, by the journal
    stopped: frozenset[str] = frozenset()  # of the spared servers
    ended_s: float | None = None  # when a saving ended, until all of its servers serve
    back: frozenset[str] = frozenset()  # the servers that were spared last
    failing: frozenset[str] = frozenset()  # by the journal: one that failed is tried again later
    recovered_s: dict[str, float] = field(default_factory=dict)  # when it was found to be well again
    over_s: float = 0.0  # for how long a daemon could see more load than the rest carries
    held_s: float = -1e9
    """The last fault of a stop, of the adapters that a server needs to serve, or of a daemon that starts
    it, or the last restart by its owner: a launch that hangs soon after is counted as one more."""
    lengths: "deque[bool]" = field(default_factory=lambda: deque(maxlen=KNOWN_S))

    def wrong(self, what: str) -> None:
        self.observer.wrong(what)

    @property
    def now_s(self) -> float:
        return self.observer.world.at_s

    def wrote(self, entry: "Written", state: State) -> None:
        """Check an entry; the observer has the state before it yet."""
        if state.regimes is not None and entry.action == "regimes.switched":
            self._switched(state, state.regimes)
        if state.rollout is not None and entry.action == "regimes.ended":
            self.switched.add(state.rollout.id)  # the values from before may come back in the same step
        if state.rollout is not None and state.rollout.id not in self.observer.undrained:
            self._begins(state.rollout)
            self.last = state.rollout
        self._changes(state)
        self._saves(entry, state)
        self.recovered_s |= dict.fromkeys(self.failing - state.failing.keys(), self.now_s)
        self.failing = frozenset(state.failing)
        self.regimes = state.regimes

    # Switches.

    def _switched(self, state: State, regimes: Regimes) -> None:
        rollout = state.rollout
        assert rollout is not None
        self.switched.add(rollout.id)
        if STATES().validate_json(STATES().dump_json(state)) != state:
            self.wrong(f"switch: {rollout.id} cannot be read back from the journal")
        if regimes.ending:
            return  # the values from before come back
        times = self.switches.setdefault(regimes.id, [])
        most = MOST_COLD_SWITCHES if regimes.regimes.cold else MOST_SWITCHES
        if len(times) >= most:
            self.wrong(f"switch: {rollout.id} is one more than {most} in a day")
        above = regimes.regimes.above.values[CAP] == rollout.suggestion.proposal.to[CAP]
        if times and times[-1][1] is not above and self.now_s - times[-1][0] < LASTS_S - 1:
            self.wrong(f"switch: {rollout.id} begins {self.now_s - times[-1][0]:.1f} s after the last one")
        times.append((self.now_s, above))
        if self.lengths.count(above) < LASTS_S - LAG_S:
            self.wrong(f"switch: {rollout.id} for a load that was there for {self.lengths.count(above)} s")
        if above not in [*self.lengths][-OLD_S:]:
            self.wrong(f"switch: {rollout.id} is for a load that ended some time ago")
        if state.paused or state.fleet.spared:
            self.wrong(f"switch: {rollout.id} begins while paused, or while servers are spared")

    def _begins(self, rollout: Rollout) -> None:
        regimes, theirs = self.regimes, rollout.suggestion.proposal.to
        switching = regimes is not None and regimes.ended_at is None
        if regimes is not None and switching and not regimes.covers(rollout.id) and CAP in theirs:
            self.wrong(f"switch: {rollout.id} changes {CAP}, which {regimes.id} sets")
        if self.observer.spared:
            self.wrong(f"saving: {rollout.id} begins while servers are spared")

    def may_begin(self, state: State) -> bool:
        """Whether a rollout may begin outside of the windows: the values from before come back."""
        regimes, rollout = state.regimes, state.rollout
        if regimes is None or rollout is None or not regimes.covers(rollout.id):
            return False
        return dict(rollout.suggestion.proposal.to).items() <= dict(regimes.before).items()

    def _changes(self, state: State) -> None:
        """A change of the fleet's caps between the two settings is that of a switch which was written."""
        caps = frozenset(server.setting.get(CAP) for server in state.fleet.servers)
        before, self.caps = self.caps, caps or self.caps
        regimes, rollout = state.regimes, state.rollout
        if regimes is None or regimes is not self.regimes or not before or caps == before or len(caps) > 1:
            return
        both = {regimes.regimes.above.values[CAP], regimes.regimes.below.values[CAP]}
        named = (rollout is not None and rollout.id in self.switched) or bool(self.observer.overruled)
        if caps | before <= both and not named:
            self.wrong(f"switch: {CAP} {set(before)} became {set(caps)}, and no entry says so")

    # Savings.

    def _saves(self, entry: "Written", state: State) -> None:
        keeps = {server.name: server.keep for server in state.fleet.spared}
        before, spared = self.observer.spared, keeps.keys()
        if spared and isinstance(state.rollout, Saving):
            wanted = int(str(state.rollout.suggestion.proposal.to[SERVERS]))
            left = sum(keeps.get(server.name, server.replicas) for server in state.fleet.servers)
            if left < wanted or state.rollout.suggestion.digest not in self.observer.operator_digests:
                self.wrong(f"saving: {left} servers serve, and a person approved {wanted}")
        if before and not spared:
            self.ended_s, self.back = self.now_s, before
            started = {effect.server.name for effect in entry.effects if effect.kind == "launch"}
            if missing := sorted((self.stopped & before) - started):
                self.wrong(f"saving: it ends, and {', '.join(missing)} does not start at once")
        self.stopped = frozenset(state.fleet.stopped) & spared

    def second(self, worked_s: float | None, *, calm_s: float) -> None:
        """`calm_s`: since the last fault."""
        observer, world = self.observer, self.observer.world
        self.lengths.append(world.is_long)
        sees = worked_s is not None and not (observer.blind() or observer.maintenance or observer.unwritable)
        over = sees and bool(observer.spared) and world.rate >= PEAK_RPS
        self.over_s = self.over_s + 1 if over else 0.0
        if self.over_s > RETURNS_S:
            self.wrong(f"saving: {self.over_s:.0f} s after the load returned servers are spared yet")
        waiting = (world.stopped.keys() | world.servers.keys() - world.in_force().keys()) & self.back
        if observer.spared or not waiting:
            self.ended_s = None
        if self.ended_s is None or worked_s is None or not sees:
            return
        if (idle := self._idle()) and self.now_s - self.ended_s > JOINS_S:
            self.wrong(f"saving: {', '.join(idle)} is healthy again, and gets no traffic")
        since_s = min(self.now_s - self.ended_s, calm_s, worked_s)
        if since_s > STARTS_S and (late := waiting - self.failing):
            names = ", ".join(sorted(late))
            self.wrong(f"saving: {since_s:.0f} s after its end {names} does not serve")

    def _idle(self) -> list[str]:
        """The servers that were spared, which could serve for long, and have no share."""
        world, idle = self.observer.world, list[str]()
        for name in sorted(self.back & world.servers.keys()):
            process = world.servers[name]
            able = process.status == "healthy" and name not in self.failing and not world.errors_of(process)
            since_s = max(process.since_s, world.weightless_s.get(name, self.now_s))
            since_s = max(since_s, self.recovered_s.get(name, 0.0))
            if able and self.now_s - since_s > JOINS_S and self.now_s - self.held_s > HELD_S:
                idle.append(name)
        return idle

    def settled(self, caps: Iterable[object]) -> list[str]:
        """Why switching has no defined end; empty if it has, goes on, or something else followed."""
        regimes, last = self.regimes, self.last
        if regimes is None or not regimes.ending or last is None or not regimes.covers(last.id):
            return []
        if regimes.ended_at is None:
            return [f"{regimes.id} has not ended: {regimes.ending}"]
        before = regimes.before[CAP]
        stay = "stay" in regimes.ending or regimes.regimes.cold
        others = {cap for cap in caps if cap != before}
        if stay or not others:
            return []
        return [f"{regimes.id} has ended, and {CAP} is {others}, not {before}"]

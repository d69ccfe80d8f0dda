"""The invariants of every history, checked after each change.

They use no code of the machine, only the world, the journal, the windows and the requests of operators.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.windows import Windows
from tests.simulation.load import CAP
from tests.simulation.load_observer import LoadObserver
from tests.simulation.world import BAD, Process, World

UNDECIDED = frozenset({"draining", "launching", "warming", "canary", "replacing"})
TIMED = frozenset({"trial", "promoting", "rolling_back", "cooldown", "restoring"})  # with deadlines
SET_S = 1800.0  # half of what the clock is set by; frozen daemons write late
CHANGES = frozenset({"launch", "route", "keep_alive", "stop", "retire"})  # the other calls only read
KNOWN_S = 12.0  # delay until a daemon has observed it
FAILS_S = {"hung": 15.0, "wedged": 20.0, "errs": 30.0}  # the same for a server that fails, by how
OUTDATED_S = 50.0  # a server that erred is tried again later
SHUT_OUT_S = 0.5  # delay until the proxy has the epoch of an acting daemon
CALM_S = 60.0  # recovery time after a fault
ENDS_S = 11.5  # between a drain and the end that follows, where the drain's answer is late (adapters.LATE_S)
HANDS_S = 3.0  # delay until a daemon has restored a manually changed split
STRANGERS = frozenset({"victor"})  # has a token, and no role that decides
KNOBS_LEASE_S = 5.0  # of new values on servers that run
SPARE = 3  # servers besides the fleet: green, a successor, one being retired
REFUSED, BROKEN, UNWRITABLE = 400, 500, 503
Settings = frozenset[tuple[str, object]]


class Written(Protocol):
    """The checked fields of a journal entry."""

    @property
    def at(self) -> datetime: ...
    @property
    def action(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def after(self) -> Mapping[str, Any]: ...
    @property
    def effects(self) -> Iterable[Any]: ...
    @property
    def actor(self) -> Any: ...  # noqa: ANN401
    @property
    def state(self) -> Any: ...  # noqa: ANN401


@dataclass(repr=False, slots=True, kw_only=True)
class Observer:
    """`violations`: what did not hold, in order, each once."""

    world: World
    fleet: int
    swaps: bool
    auto: bool
    old: frozenset[str]  # the servers of the beginning
    drain_s: float
    lease_s: float
    bounds: tuple[float, float]
    acting: Callable[[], float | None]  # seconds that a daemon has run undisturbed; None without a daemon
    violations: list[str] = field(default_factory=list)
    newest: int = 0  # newest epoch in the proxy, and since when
    newest_s: float = 0.0
    intents: set[tuple[str, str]] = field(default_factory=set)
    operator_digests: set[str] = field(default_factory=set)  # digests that an operator approved
    approved: set[str] = field(default_factory=set)  # those recorded in the journal
    allowed: set[Settings] = field(default_factory=set)
    in_force: set[Settings] = field(default_factory=set)  # of the fleet, as the journal has it
    faulted_s: float = -1e9
    handed_s: float = -1e9  # time of the last manual split
    unwritable: bool = False
    phase: str = ""
    writer: int = 0  # newest epoch in the journal
    woke_s: float = -1e9  # when a daemon went on that had been paused
    overruled: set[str] = field(default_factory=set)
    """Servers whose values an older daemon set since a newer one began, which is told of it by nothing."""
    passed: bool = False
    running: str = ""  # the rollout without an outcome
    greens: frozenset[str] = frozenset()
    windows: Windows = field(default_factory=Windows)
    reloads: int = 0
    maintenance: bool = False  # as the journal says
    undrained: dict[str, int] = field(default_factory=dict)  # by rollout, as the journal counts them
    excused: int = 0  # requests cut on a recently unresponsive server
    silent_s: dict[str, float] = field(default_factory=dict)  # last time a server was unresponsive
    blind: Callable[[], bool] = lambda: False  # whether a daemon cannot see how servers do
    failed_over: bool = False  # in the journal
    adapters: frozenset[str] = frozenset()  # that clients get, by the journal
    load: LoadObserver = field(init=False)
    keeps: Mapping[str, int] = field(default_factory=dict)
    """What is spared by a saving that is on trial or in force, by the journal: the replicas that stay."""
    _shares: dict[str, int] = field(default_factory=dict)  # before the last change
    _weightless_s: dict[str, float] = field(default_factory=dict)  # before the last change
    _fails_s: dict[str, float] = field(default_factory=dict)  # for how long a daemon could see it, by server
    _served: bool = False
    _nobody_since: float | None = None
    _alone_since: float | None = None
    _unleased_since: float | None = None
    _written: tuple[datetime, float] | None = None  # of the last entry: its time, and that of the world

    def __post_init__(self) -> None:
        self.load = LoadObserver(self)

    @property
    def spared(self) -> frozenset[str]:
        return frozenset(self.keeps)

    def wrong(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)

    # What is written.

    def wrote(self, entry: Written, epoch: int) -> None:
        for effect in entry.effects:
            server = getattr(effect, "server", None)
            numbered = effect.kind in {"route", "set_knobs"}
            key = str(effect.number) if numbered else server.name if server else ""
            self.intents.add((effect.kind, key))
        if entry.actor.id in STRANGERS or entry.after.get("comment") == "revoked":
            self.wrong(f"6: {entry.action} by {entry.actor.id}, who may not")
        if entry.action in {"suggestion.approved", "approval.kept"}:
            self._approved(entry)
        self.reloads += entry.action == "config.reloaded"
        if epoch < self.writer:
            return  # a replaced daemon, into its own journal
        self._times(entry, epoch)
        self.writer = epoch
        self.phase = str(entry.after.get("phase", self.phase))
        state = entry.state
        if state is None:
            return
        self.load.wrote(entry, state)
        self.maintenance = state.maintenance
        self.passed = state.rollout is not None and state.rollout.passed
        self.in_force = {frozenset(server.setting.items()) for server in state.fleet.servers}
        self.failed_over = state.split.planned is not None
        fleet = [self.world.servers.get(server.name) for server in state.fleet.servers]
        runs = all(process is not None and self._has_begun(process) for process in fleet)
        lost = sorted(self.adapters - self.world.loaded_adapters())
        kept = runs and "blue was lost" not in entry.why  # the only server left gets them afterwards
        if entry.action == "rollout.promoted" and kept and lost:  # a server that starts has none yet
            self.wrong(f"3: promoted without {', '.join(lost)}, which clients have loaded")
        self.adapters = frozenset(adapter.name for adapter in state.fleet.adapters)
        self.greens = frozenset(server.name for server in state.greens)
        self.keeps = {server.name: server.keep for server in state.fleet.spared}
        if self.running and state.rollout is not None and state.rollout.id != self.running:
            self.wrong(f"3: {state.rollout.id} begins, and {self.running} has no outcome")
        self.running = state.rollout.id if state.rollout and state.rollout.outcome == "running" else ""
        if state.rollout is not None:
            self._begins(entry, state.rollout)
            self.undrained[state.rollout.id] = sum(getattr(state.rollout, "undrained", {}).values())

    def _has_begun(self, process: Process) -> bool:
        """Whether a daemon could load adapters into it."""
        return process.status != "starting"

    def _begins(self, entry: Written, rollout: Rollout) -> None:
        is_new = rollout.id not in self.undrained
        if is_new and not self.windows.is_open(rollout.started_at) and not self.load.may_begin(entry.state):
            self.wrong(f"windows: {rollout.id} begins outside of them, at {entry.at:%H:%M:%S}")

    def _times(self, entry: Written, epoch: int) -> None:
        """Within a process no clock that is set moves the times of a rollout or of a cooldown.

        What could not be written has the time of when it happened.
        """
        last, self._written = self._written, None if self.unwritable else (entry.at, self.world.at_s)
        timed = epoch == self.writer and self.phase in UNDECIDED | TIMED
        if last is None or self._written is None or not timed:
            return
        passed_s, wrote_s = self.world.at_s - last[1], (entry.at - last[0]).total_seconds()
        if abs(wrote_s - passed_s) > SET_S:
            self.wrong(f"clock: {wrote_s:.0f} s pass in {self.phase}, and {passed_s:.0f} s have passed")

    def _approved(self, entry: Written) -> None:
        digest, to = entry.after.get("digest", ""), entry.after.get("setting", {})
        self.approved.add(digest)
        if entry.actor.kind == "person" and digest not in self.operator_digests:
            self.wrong(f"6: approved by {entry.actor.id} is a digest that no person was shown")
        if entry.actor.kind == "auto":
            low, high = self.bounds
            if not self.auto or not all(low <= value <= high for value in to.values()):
                self.wrong("6: approved by itself outside of auto mode or its bounds")
        if entry.actor.kind not in {"person", "auto"}:
            self.wrong(f"6: approved by a {entry.actor.kind}")
        for base in list(self.allowed):
            self.allowed.add(frozenset({**dict(base), **to}.items()))

    def answered(self, what: str, status: int, *, may: bool, digest: str) -> None:
        """Check an API response to an operator; `may`: is allowed to decide; `digest`: of the approval."""
        if status >= BROKEN and status != UNWRITABLE:
            self.wrong(f"api: {what} is answered {status}")
        if status < REFUSED and not may:
            self.wrong(f"6: {what} by an unauthorized operator is answered {status}")
        if status < REFUSED and digest and digest not in self.approved:
            self.wrong(f"api: {what} is answered {status}, and no approval was written")

    # Calls of the daemons.

    def called(self, epoch: int, kind: str, name: str, number: int | None) -> None:
        """Check a call before it is performed."""
        if epoch < self.newest and kind in CHANGES and self.world.at_s - self.newest_s > SHUT_OUT_S:
            self.wrong(
                f"5: {kind} {name} by a daemon of epoch {epoch} after one of epoch {self.newest} acted"
            )
        if kind == "keep_adapters":
            return  # it sets no flag and moves no request, so it is not journalled
        key = str(number) if number is not None else name
        sort = {"keep_alive": "route", "keep_knobs": "set_knobs"}.get(kind, kind)
        intents = {("preflight", ""), ("examine", "")} if kind in {"preflight", "examine"} else {(sort, key)}
        back = kind != "launch" or name in self.old  # allowed before it is written
        if not intents & self.intents and not (self.unwritable and back):
            self.wrong(f"journal: {kind} {key} is performed and nothing that was written says so")

    def starts(self, setting: Mapping[str, object]) -> None:
        if frozenset(setting.items()) not in self.allowed:
            self.wrong(f"6: a server is started with {dict(setting)}, which is not approved")

    def cut(self, process: Process, requests: int, epoch: int) -> None:
        """Check the stop of a server with open requests."""
        if not epoch or not process.answers:
            return
        if self.world.at_s - self.handed_s < ENDS_S:
            self.excused += requests  # its share returned during its stop
            return
        if process.name in self.world.in_force():
            self.wrong(f"1: {process.name} is ended while it has a share")
        if not requests:
            return
        if process.name in self.spared:
            self.wrong(f"2: {process.name} is spared, and stopped with {requests} requests open")
        if self.world.at_s - self.silent_s.get(process.name, -1e9) < CALM_S:
            self.excused += requests
            return
        since = self.world.weightless_s.get(process.name)
        waited_s = self.world.at_s - since if since is not None else 0.0
        if waited_s < self.drain_s - 1.0:
            self.wrong(f"2: {process.name} is ended {waited_s:.1f} s after its last share with requests open")

    # State of the world.

    def changed(self, what: str, name: str, epoch: int) -> None:
        """Check after each change; `epoch` 0 for a change without a daemon."""
        world, served = self.world, self._served
        if epoch > self.newest and what == "split":
            self.newest, self.newest_s = epoch, world.at_s
        self._served = bool(world.serving())
        if epoch and served and not self._served and what in {"split", "stop", "retire"}:
            self._nobody_serves(what, name)
        if what in {"split", "set_knobs"} and epoch:
            self._alone_since = None  # one that did not live for a second has acted, too
        if what == "split" and epoch and world.split is not None:
            self._moves_to_worse()
            weights = world.split.weights.values()
            if sum(weights) != (0 if world.split.closed_s else 100) or min(weights, default=0) < 0:
                self.wrong(f"weights: {world.split.weights}")
        if epoch >= self.writer > 0 and what == "launch" and self.maintenance:
            self.wrong(f"maintenance: {name} is started, and nobody has resumed")
        if epoch and what == "launch":
            self.starts(world.servers[name].setting)
        self._shares, self._weightless_s = world.in_force(), dict(world.weightless_s)
        ours = [process.name for process in world.servers.values() if process.ours]
        if len(ours) > self.fleet + SPARE:
            self.wrong(f"3: {len(ours)} servers run at once: {', '.join(sorted(ours))}")

    def _nobody_serves(self, what: str, name: str) -> None:
        world, split = self.world, self.world.split
        if not world.proxy_up or world.at_s - self.handed_s < HANDS_S:
            return
        if what == "split" and split is not None and split.closed_s:
            if not self.swaps:
                self.wrong("1: the route is closed, and no outage was approved")
            return
        shares = [world.servers.get(server) for server in world.in_force()]
        if what == "split" and any(p is not None and world.at_s - p.since_s < KNOWN_S for p in shares):
            return  # it became unresponsive during the route call
        if what == "split" and any(p is not None and p.status == "hung" for p in shares):
            return  # the machine rolls back to unresponsive old servers: they may recover
        if what == "split" and any(p is None for p in shares) and world.at_s - self.faulted_s < KNOWN_S:
            return
        before = [world.servers[server] for server in self._shares if self._is_known(server)]
        was_known = bool(before) or any(world.answers(server) for server in self._shares)
        if what == "split" and was_known and all(self._how_it_fails(process) for process in before):
            return  # from a wedged green to an old server of which most requests fail
        rested = [world.at_s - self._weightless_s.get(server, world.at_s) for server in world.in_force()]
        if what == "split" and self.phase == "rolling_back" and min(rested, default=0.0) > OUTDATED_S:
            return  # the old server is tried again
        self.wrong(f"1: {what} {name} leaves no responsive server with a share: {world.in_force()}")

    def _is_known(self, name: str) -> bool:
        """Whether it answers, and a daemon could know so: its owner has not just started it again."""
        process = self.world.servers.get(name)
        known = process is not None and (process.ours or self.world.at_s - process.since_s >= KNOWN_S)
        return known and self.world.answers(name)

    def _how_it_fails(self, process: Process) -> str:
        if process.status in FAILS_S:
            return process.status
        return "errs" if process.status == "healthy" and self.world.errors_of(process) >= BAD else ""

    def _watch_failures(self, worked_s: float | None) -> None:
        """Count for how long a daemon could see that a server fails."""
        world, shares = self.world, self.world.in_force()
        well = {n for n, p in world.servers.items() if p.status == "healthy" and not self._how_it_fails(p)}
        for name, process in world.servers.items():
            how = self._how_it_fails(process)
            idle_s = world.at_s - world.weightless_s.get(name, world.at_s)
            seen = how == "hung" or (name in shares and bool(well & shares.keys()))
            if not how or worked_s is None or self.blind() or (how == "errs" and idle_s > OUTDATED_S):
                self._fails_s[name] = 0.0
            elif seen:  # errors by requests: as many as one a second in all that time
                asked = min(1.0, world.rate * shares.get(name, 0) / 100) if how == "errs" else 1.0
                self._fails_s[name] = self._fails_s.get(name, 0.0) + asked

    def _moves_to_worse(self) -> None:
        """Check that no share moves from a server that is well to one that is known to fail."""
        world, now = self.world, self.world.in_force()
        if world.at_s - self.handed_s < HANDS_S or self.blind():
            return
        for name, process in world.servers.items():
            how = self._how_it_fails(process)
            if not how or self._fails_s.get(name, 0.0) < FAILS_S[how]:
                continue
            if now.get(name, 0) <= self._shares.get(name, 0):
                continue
            left = [
                server.name
                for server in world.servers.values()
                if self._is_known(server.name) and not self._how_it_fails(server)
                if now.get(server.name, 0) < self._shares.get(server.name, 0)
            ]
            if left:
                self.wrong(f"1: traffic moves from {', '.join(left)} to {name}, which {how}")

    def second(self) -> None:
        world, worked_s = self.world, self.acting()
        self._shares = world.in_force()
        self._watch_failures(worked_s)
        self._served = bool(world.serving())
        for process in world.servers.values():
            if not process.answers:
                self.silent_s[process.name] = world.at_s
        calm = worked_s is not None and min(worked_s, world.at_s - self.faulted_s) > CALM_S
        able = [p.name for p in world.servers.values() if p.answers and world.errors_of(p) < BAD]
        planned = self.swaps and self.phase in UNDECIDED | {"rolling_back", "restoring"}
        outage = not self._served and bool(able) and not planned
        self._nobody_since = (self._nobody_since or world.at_s) if outage else None
        if calm and self._nobody_since is not None and world.at_s - self._nobody_since > CALM_S:
            self.wrong(f"1: no server serves for {CALM_S:.0f} s while {', '.join(able)} could")
        self._lease(worked_s, calm=calm)
        self._knobs()
        self.load.second(worked_s, calm_s=world.at_s - self.faulted_s)

    def _knobs(self) -> None:
        """New values end with their lease once no daemon acts."""
        world = self.world
        unwatched_s = world.at_s - self._alone_since if self._alone_since is not None else 0.0
        if self.phase != "trial" or self.passed or unwatched_s < KNOBS_LEASE_S + 1.5:
            return
        for process in world.servers.values():
            of_start = process.setting.get("max_num_seqs")  # its owner may have changed it
            in_force = {dict(setting).get("max_num_seqs") for setting in self.in_force}
            if world.cap_of(process) not in {of_start, *in_force}:
                self.wrong(
                    f"4: {process.name} has new values {unwatched_s:.0f} s after the last daemon acted"
                )

    def _lease(self, worked_s: float | None, *, calm: bool) -> None:
        world = self.world
        self._alone_since = (self._alone_since or world.at_s) if worked_s is None else None
        routed = world.split.weights.keys() if world.split is not None else set[str]()
        old = [name for name in routed - self.greens if world.answers(name)]
        shares = set(world.in_force())
        canary = self.phase == "canary" and not self.passed and old and not self.failed_over
        unwatched_s = world.at_s - self._alone_since if self._alone_since is not None else 0.0
        if canary and shares & self.greens and unwatched_s > self.lease_s + 1.5:
            self.wrong(f"4: green has a share {unwatched_s:.0f} s after the last daemon acted")
        spent = bool(world.split and world.split.leased and not world.lease_holds() and world.proxy_up)
        self._unleased_since = (self._unleased_since or world.at_s) if spent else None
        if calm and self._unleased_since is not None and world.at_s - self._unleased_since > self.lease_s:
            self.wrong("4: a daemon works and does not renew the lease")

    # Final state.

    def settled(self, *, mixed: bool, strays: frozenset[str]) -> list[str]:
        """Reasons why this is no defined state; empty if it is. `strays` may remain until a restart."""
        world = self.world
        shares = world.in_force()
        theirs = {n for n, p in world.servers.items() if not p.ours and n not in shares}  # started by hand
        names = sorted(set(world.servers) - strays - (theirs if len(world.servers) > self.fleet else set()))
        problems = []
        wanted = self.fleet - [*self.keeps.values()].count(0)
        if len(names) != wanted:
            problems.append(f"{len(names)} servers run ({', '.join(names)}), not {wanted}")
        if silent := [name for name in names if world.servers[name].status != "healthy"]:
            problems.append(f"{', '.join(silent)} does not serve")
        if sorted(shares) != names:
            problems.append(f"the traffic goes to {shares}, and {', '.join(names)} run")
        runs = [world.servers[name] for name in names]
        in_force = {frozenset({**each.setting, CAP: world.cap_of(each)}.items()) for each in runs}
        if len(in_force) > 1 and not mixed:  # one may have by its flags what another has by a hot change
            problems.append("servers of one target run with different flags")
        if forgotten := sorted(self.adapters - world.loaded_adapters()):
            problems.append(f"no server has {', '.join(forgotten)}, which clients have loaded")
        if not mixed:
            problems += self.load.settled(world.cap_of(world.servers[name]) for name in names)
        if self.running:
            problems.append(f"rollout {self.running} has no outcome")
        if kept := set(world.stopped) - self.spared:
            problems.append(f"{', '.join(sorted(kept))} is stopped and kept")
        return problems

    def end(self) -> None:
        """Check at the end of the history."""
        world, ledger = self.world, self.world.ledger
        ended = ledger.answered + ledger.failed + ledger.cut
        if ledger.accepted != ended + world.still_open():
            self.wrong(f"2: of {ledger.accepted} requests {ended} ended and {world.still_open()} are open")
        undrained = sum(self.undrained.values())
        if ledger.cut > undrained + self.excused:
            self.wrong(f"2: {ledger.cut} requests were cut, the journal counts {undrained}")

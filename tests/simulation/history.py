"""One history: a scenario played over the world, with its counts, log and violations."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from flettner.agent.audit.records import JournalEntry
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import FencedError, JournalError
from flettner.agent.domain.model import Mode
from flettner.agent.domain.ports import Engine
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.transitions import Rules
from tests.simulation import actions
from tests.simulation.adapters import SimEngine
from tests.simulation.api_client import PRINCIPALS, shared_api
from tests.simulation.clock import EPOCH, VirtualLoop, in_virtual_time
from tests.simulation.config_file import ConfigFile, Content
from tests.simulation.disk import Disk, JournalStore, RecordingJournal
from tests.simulation.load import LATE, scaled_times
from tests.simulation.load_observer import HELD_S
from tests.simulation.observer import Observer
from tests.simulation.operators import Operator
from tests.simulation.process import RESTART_S, Daemon, died_of
from tests.simulation.scenario import LOAD_QUIET_S, OF_LOAD, QUIET_S, Act, Scenario, drawn, name_of
from tests.simulation.setup import BLUE, BOUND, PLAN, boots, is_new, rules_of, windows_of
from tests.simulation.world import Boot, Process, World

TARGET = "chat"
SETTLED_S = 420.0  # deadline of a defined state after the last fault; a running rollout may end first
CALM_S = 3.0
MOST_RESTLESS = 100  # times that a settled world was not calm
BLIND_S = 10.0  # after the end of a fault of the metrics
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a disk in memory
DISK = ("disk full", "fsync fails")
LOADED = {"sql": 0.1, "legal": 0.4, "tax": 0.8}  # adapters, and when a client loads them, as part of QUIET_S
LATE_S = 2.5  # until backlogged entries are written
RESTING = {Phase.OBSERVING, Phase.PROPOSED, Phase.CHECKING, Phase.COOLDOWN}


@dataclass(slots=True, kw_only=True)
class HistoryResult:
    """The result of a history."""

    scenario: Scenario
    violations: list[str]
    fired: Counter[str]
    log: list[str]
    seconds: float
    starts: int
    entries: int
    outcome: str


@dataclass(repr=False, slots=True, kw_only=True)
class History:
    """Plays one scenario. `rules` may be those of a mutant."""

    scenario: Scenario
    rules: Rules | None = None
    random: Random = field(init=False)
    store: JournalStore = field(init=False)
    loop: VirtualLoop = field(init=False)
    world: World = field(init=False)
    boots: tuple[Boot, Boot] = field(init=False)  # of servers with the old and the new setting
    boots_otherwise: tuple[Boot, Boot] = field(init=False)  # with the setting for the other lengths
    observer: Observer = field(init=False)
    operator: Operator = field(init=False)
    daemons: list[Daemon] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    logged_split: tuple[int, int, dict[str, int]] | None = None  # the last logged split
    troubles: dict[str, float] = field(default_factory=dict)  # end of each lasting fault
    waiting: dict[int, int] = field(default_factory=dict)  # pending acts and their counts
    disk: Disk = field(default_factory=Disk)
    mode: Mode = "approve"
    principals: frozenset[str] = frozenset(PRINCIPALS)  # principals in the tokens file
    other: bool = False  # another configuration is in force
    file: ConfigFile = field(init=False)
    quiet: bool = False
    mixed: bool = False  # an operator changed the flags of a server
    entries: int = 0
    restless: int = 0  # times that entries were written in a settled world
    written_at: datetime = EPOCH  # the last entry
    quiet_s: float = QUIET_S
    settled_s: float = SETTLED_S

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.random = drawn("world", scenario.seed)
        self.loop = VirtualLoop(drawn("order", scenario.seed))
        self.store = JournalStore(disk=self.disk, random=self.random, now=self.loop.wall)
        self.world = self.make_world()
        self.mode = scenario.mode
        if scenario.follows_load:
            self.quiet_s = max(self.quiet_s, LOAD_QUIET_S)
        self.boots = self.boots_otherwise = boots(scenario)
        if scenario.switches:
            old, new = self.boots
            self.boots_otherwise = replace(old, errors=LATE), replace(new, errors=max(LATE, new.errors))
        self.world.errs = any(boot.errors for boot in (*self.boots, *self.boots_otherwise))
        self.observer = self.make_observer()
        self.world.changed, self.world.cut_open = self._changed, self.observer.cut
        self.operator = Operator(history=self)
        self.waiting = {at: 0 for at, act in enumerate(scenario.acts) if act.on}

    # What histories of another kind have instead.

    def make_world(self) -> World:
        hot = self.scenario.strategy == "hot"
        return World(
            loop=self.loop,
            random=self.random,
            boot_of=self.boot_of,
            sleeps=self.scenario.sleeps,
            has_late_threads=self.scenario.late_threads,
            has_hot_knobs=hot,
        )

    def boot_of(self, process: Process) -> Boot:
        new = is_new(self.world.cap_of(process))
        return (self.boots if new is self.world.is_long else self.boots_otherwise)[new]

    def make_observer(self) -> Observer:
        return Observer(**self.observed())

    def observed(self) -> dict[str, Any]:
        """The fields of an observer."""
        scenario = self.scenario
        return {
            "world": self.world,
            "fleet": scenario.servers,
            "swaps": scenario.strategy == "swap",
            "auto": scenario.mode == "auto",
            "old": frozenset(scenario.names),
            "drain_s": PLAN.drain_s,
            "lease_s": PLAN.lease_s,
            "bounds": (BOUND.min or 0.0, BOUND.max or 0.0),
            "acting": self._acting,
            "blind": self._is_blind,
            "allowed": {frozenset(BLUE.items())},
            "windows": windows_of(scenario),
        }

    def make_rules(self) -> Rules:
        return rules_of(self.scenario, other=self.other)

    def make_engine(self, daemon: Daemon) -> Engine:
        return SimEngine(daemon, self.scenario.strategy)

    def apply(self, act: Act) -> bool:
        return actions.do(self, act)

    def heal(self) -> None:
        actions.heal(self)

    def surroundings(self) -> AbstractContextManager[object]:
        return scaled_times() if self.scenario.follows_load else nullcontext()

    def say(self, what: str) -> None:
        self.log.append(f"{self.loop.now_s:7.2f}  {what}")

    def count(self, act: Act) -> None:
        self.fired[name_of(act)] += 1
        if act.what not in OF_LOAD:
            self.observer.faulted_s = self.loop.now_s
        held = self.loop.now_s - self.observer.load.held_s < HELD_S
        begins = act.what == "flags changed by hand" or (act.on == "launch" and act.what.startswith("crash"))
        if begins or act.on in {"stop", "keep_adapters"} or (act.on == "launch" and held):
            self.observer.load.held_s = self.loop.now_s
        self.say(f"!! {name_of(act)}")

    def _changed(self, what: str, name: str, epoch: int) -> None:
        split = self.world.split
        if what == "set_knobs" and epoch < self.daemons[-1].epoch:
            self.observer.overruled.add(name)
        if what != "split":
            self.say(f"   {what} {name} by {epoch or 'no daemon'}")
        elif split is not None:
            self._say_split(split.number, epoch)
        self.observer.changed(what, name, epoch)

    def _say_split(self, number: int, epoch: int) -> None:
        split = (number, epoch, self.world.in_force())
        if split != self.logged_split:
            self.logged_split = split
            self.say(f"   split {number} by {epoch}: {split[2]}")

    def wrote(self, entry: JournalEntry, epoch: int) -> None:
        self.entries += 1
        self.written_at = entry.at
        self.say(f"{epoch}: {entry.action} [{entry.after.get('phase', '')}] {entry.why[:90]}")
        self.observer.wrote(entry, epoch)
        self._in_turn(f"phase {entry.after.get('phase', '')}")

    # Faults.

    def take(self, on: str, daemon: Daemon) -> Act | None:
        """The fault of this call of this process; each fault fires once."""
        fault = None if self.quiet else self._due(on, daemon) or self._due("any", daemon)
        if fault is None:
            return None
        if fault.on == "any":
            fault = replace(fault, what="crash before" if fault.nth % 2 else "crash after")
            self.fired["recovery: crash"] += 1
            self.observer.faulted_s = self.loop.now_s
            self.say(f"!! recovery: {fault.what} {on}")
        else:
            self.count(fault)
        self.store.flips = self.store.flips or fault.what == "bit flipped"
        return fault

    def _due(self, on: str, daemon: Daemon) -> Act | None:
        for at in list(self.waiting):
            act = self.scenario.acts[at]
            if act.on != on or daemon.number <= act.start:
                continue
            self.waiting[at] += 1
            if self.waiting[at] == act.nth:
                del self.waiting[at]
                return act
        return None

    def _in_turn(self, on: str) -> None:
        act = None if self.quiet else self._due(on, self.daemons[-1])
        if act is not None:
            self.loop.outside(0.2, lambda: self.do(act))

    def do(self, act: Act) -> None:
        if not self.quiet and self.apply(act):
            self.count(act)

    def trouble(self, what: str, lasts_s: float) -> None:
        """Start a lasting fault, which ends after `lasts_s`."""
        self.troubles[what] = self.loop.now_s + lasts_s
        if what in DISK:
            self.troubles["unwritable"] = self.troubles[what] + LATE_S
        for later_s in (lasts_s + 0.001, lasts_s + LATE_S + 0.001):
            self.loop.outside(later_s, self._disk)
        self._disk()

    def _disk(self) -> None:
        self.disk.full, self.disk.broken = self.active("disk full"), self.active("fsync fails")
        self.observer.unwritable = self.active("unwritable")

    def active(self, what: str) -> bool:
        return self.troubles.get(what, -1.0) > self.loop.now_s

    # Processes.

    @property
    def daemon(self) -> Daemon | None:
        """The newest running daemon."""
        return next((daemon for daemon in reversed(self.daemons) if daemon.works), None)

    def now(self) -> datetime:
        """The time that the API stamps on what operators ask."""
        return daemon.clock.now() if (daemon := self.daemon) is not None else self.loop.wall()

    def _acting(self) -> float | None:
        """Seconds that a daemon has run; None without one, or in advise mode, which suspends rollouts."""
        daemon = self.daemon
        return self.loop.now_s - daemon.began_s if daemon is not None and self.mode != "advise" else None

    def _is_blind(self) -> bool:
        """Whether the daemon cannot see how servers do, or could not a moment ago."""
        return any(self.troubles.get(what, -1e9) > self.loop.now_s - BLIND_S for what in actions.LASTING)

    def start(self, *, beside: bool = False) -> None:
        """Start a new process in place of the last one, or in parallel with a copy of its journal."""
        last = self.daemons[-1] if self.daemons else None
        beside = beside and last is not None and not (last.killed or last.over)
        if last is not None and not beside and not (last.killed or last.over):
            return
        try:
            daemon = self._make(last, beside=beside)
        except JournalError as error:
            self.say(f"   no start: {error}")
            self.loop.outside(RESTART_S, self.start)
            return
        self.say(f"   process {daemon.number} of epoch {daemon.epoch} starts in {self.mode} mode")

    def _make(self, last: Daemon | None, *, beside: bool) -> Daemon:
        before = last.book.inner if last is not None and last.book is not None else None
        inner = self.store.take(before, beside=beside, quick=self.quiet)
        for damage in self.store.unseen:
            self.observer.wrong(f"7: damage of the journal was not seen: {damage}")
        carried = self.world.split.epoch if self.world.split else 0
        daemon = Daemon(
            world=self.world,
            number=len(self.daemons) + 1,
            epoch=max(inner.epoch(), carried) + 1,
            take=self.take,
            tell=self._called,
            is_active=self.active,
            ended=self._ended,
            again=self.start,
        )
        self.daemons.append(daemon)
        book = RecordingJournal(
            inner=inner, host=daemon, disk=self.disk, read=self.wrote, trouble=self.trouble
        )
        recorded = inner.states().get(TARGET, State(target=TARGET))
        rules = self.rules or self.make_rules()
        self.file = ConfigFile(
            target=TARGET,
            in_force=Content(self.other),
            rules=lambda other: self.rules or rules_of(self.scenario, other=other),
            mode=self.mode,
        )
        daemon.start(book, recorded, self.mode, rules, self.make_engine(daemon), self.written_at, self.file)
        return daemon

    def _called(self, daemon: Daemon, kind: str, name: str, route: Route | None) -> None:
        self.calls[kind] += 1
        self.observer.called(daemon.epoch, kind, name, route.number if route else None)

    def _ended(self, daemon: Daemon, error: BaseException | None) -> None:
        why = died_of(error)
        self.say(f"   process {daemon.number} ended: {why!r}")
        if isinstance(why, FencedError) and daemon is not self.daemons[-1]:
            return
        if not isinstance(why, JournalError):
            self.say("".join(traceback.format_exception(why)) if why else "")
            self.observer.wrong(f"the daemon died of {why!r}")
        self.loop.outside(RESTART_S, self.start)

    def run(self) -> HistoryResult:
        with TemporaryDirectory(dir=SHM) if self.scenario.on_disk else nullcontext() as home:
            self.store.home = Path(home) if home else None
            try:
                with self.surroundings():
                    in_virtual_time(self.loop, self._play())
            finally:
                self.disk.repaired()
        last = self.daemons[-1].state
        outcome = last.outcomes[-1].result if last and last.outcomes else "none"
        return HistoryResult(
            scenario=self.scenario,
            violations=self.observer.violations,
            fired=self.fired,
            log=self.log,
            seconds=self.loop.now_s,
            starts=len(self.daemons),
            entries=self.entries,
            outcome=outcome,
        )

    async def _play(self) -> None:
        self.begin()
        for act in self.scenario.acts:
            if not act.on:
                self.loop.outside(act.at_s, partial(self.do, act))
        await asyncio.sleep(self.quiet_s)
        await self.finish()

    def begin(self) -> None:
        self.admit(frozenset(PRINCIPALS))
        self.begin_servers()
        self.begin_daemon()
        self.loop.outside(0.5, self._second)
        self.loop.outside(0.75, self.operator.look)
        for name, part in LOADED.items():
            self.loop.outside(part * self.quiet_s, partial(self._load_adapter, name))

    def _load_adapter(self, name: str) -> None:
        """A client loads an adapter: one of the servers with a share has it."""
        if serving := sorted(self.world.serving()):
            server = drawn(name, self.scenario.seed).choice(serving)
            self.world.load_adapter(server, name)
            self.say(f"   {name} loaded at {server}")

    def begin_servers(self) -> None:
        for name in self.scenario.names:
            self.world.adopt(name, dict(BLUE), ours=self.scenario.ours)

    def begin_daemon(self) -> None:
        self.loop.outside(0.0, self.start)

    def admit(self, principals: frozenset[str], *, broken: bool = False) -> None:
        """Set the principals with a token; a `broken` file changes nothing."""
        if principals != self.principals or broken or shared_api().names() != principals:
            shared_api().reload(sorted(principals), broken=broken)
        self.principals = self.principals if broken else principals

    def add_act(self, act: Act) -> None:
        """Add an act from now on."""
        self.scenario = replace(self.scenario, acts=(*self.scenario.acts, act))
        if act.on:
            self.waiting[len(self.scenario.acts) - 1] = 0
        else:
            self.do(act)

    async def finish(self) -> None:
        """End the faults; the state settles within its deadline and stays so over a restart."""
        self.heal()
        over, since_s = self.loop.create_future(), self.loop.now_s
        self.loop.outside(1.0, lambda: self._until_settled(since_s, over.set_result))
        await over
        for daemon in self.daemons:
            daemon.kill(None)
        self.observer.end()

    def _second(self) -> None:
        self.world.second()
        if (daemon := self.daemon) is not None and daemon.loop is not None:
            daemon.runtime.follow_wall_clock()
        self.observer.second()
        if not self.observer.violations:
            self.loop.outside(1.0, self._second)

    def _until_settled(self, since_s: float, over: Callable[[None], None], *, last: bool = False) -> None:
        """Check each second after the last fault, and again after a last restart."""
        why = self._unsettled(last=last)
        if self.observer.violations:
            return over(None)
        if why and self.loop.now_s - since_s > self.settled_s:
            self.observer.wrong(f"3: {self.settled_s:.0f} s after the last fault: {'; '.join(why)}")
            return over(None)
        if why:
            self.loop.outside(1.0, lambda: self._until_settled(since_s, over, last=last))
            return None
        written = self.entries
        self.loop.outside(CALM_S, lambda: self._calm(written, over, last=last))
        return None

    def _calm(self, written: int, over: Callable[[None], None], *, last: bool) -> None:
        """Check that only counts are written in a settled world."""
        now = self.loop.now_s
        if self._unsettled(last=last) or self.entries > written + 1:
            self.restless += 1
            if self.restless > MOST_RESTLESS:
                more = self.entries - written
                self.observer.wrong(f"3: entries are written without end, {more} in {CALM_S:g} s")
            self._until_settled(now, over, last=last)
        elif last:
            over(None)
        else:
            self.daemons[-1].kill()
            self.loop.outside(RESTART_S + 1.5, lambda: self._until_settled(now, over, last=True))

    def _unsettled(self, *, last: bool) -> list[str]:
        daemon = self.daemon
        state = daemon.state if daemon is not None else None
        if state is None:
            return ["no daemon runs"]
        problems = self.observer.settled(
            mixed=self.mixed, strays=frozenset() if last else frozenset({actions.STRAY})
        )
        if state.phase is Phase.HALTED and daemon is not None:
            daemon.kill()
        if state.phase not in RESTING or state.effects.awaited is not None:
            problems.append(f"{state.phase.value}: {state.note}, awaiting {state.effects.awaited}")
        if self.mode != "advise":
            problems += self._other_values(state)
        return problems

    def _other_values(self, state: State) -> list[str]:
        """Servers whose values in force are not those of the setting in force."""
        wanted = {server.name: server.setting.get("max_num_seqs") for server in state.fleet.running}
        now = {process.name: self.world.caps_of(process) for process in self.world.servers.values()}
        return [
            f"{name} runs with {now[name]}, and {cap} is in force"
            for name, cap in wanted.items()
            if name in now and cap not in now[name] and name not in self.observer.overruled
        ]


def play(scenario: Scenario) -> HistoryResult:
    return History(scenario=scenario).run()

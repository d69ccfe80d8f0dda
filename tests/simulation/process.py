"""One daemon process in the simulated world: started, killed, frozen, thawed, or ended by an error."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from flettner.agent.audit.history import History
from flettner.agent.audit.journal import Journal
from flettner.agent.config.loader import Config
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ConfigError, FencedError, JournalError
from flettner.agent.domain.events import Event
from flettner.agent.domain.model import Mode
from flettner.agent.domain.ports import Engine
from flettner.agent.domain.state import State
from flettner.agent.machine.step import ASKING
from flettner.agent.machine.transitions import Rules
from flettner.agent.runtime import daemon as real
from flettner.agent.runtime.config_reload import ConfigReload
from flettner.agent.runtime.loop import NextRules, TargetLoop
from flettner.agent.runtime.process_clock import ProcessClock
from flettner.agent.runtime.wiring import build_loop
from tests.simulation.adapters import Killed
from tests.simulation.clock import Owner
from tests.simulation.config_file import ConfigFile
from tests.simulation.disk import RecordingJournal
from tests.simulation.metrics import Metrics, SimFold
from tests.simulation.scenario import Act
from tests.simulation.traffic import SimTraffic
from tests.simulation.world import World

RESTART_S = 2.0
Take = Callable[[str, "Daemon"], Act | None]
Called = Callable[["Daemon", str, str, Route | None], None]


@dataclass(repr=False, slots=True, kw_only=True, eq=False)
class Daemon:
    """`number`: which process of the history it is, from 1. `ended`: called with the error that ended it."""

    world: World
    number: int
    epoch: int
    take: Take
    tell: Called
    is_active: Callable[[str], bool]
    ended: Callable[["Daemon", BaseException | None], None]
    again: Callable[[], None]
    owner: Owner = field(default_factory=Owner)
    began_s: float = 0.0
    killed: bool = False
    over: bool = False
    loop: TargetLoop | None = None
    runtime: real.Daemon = field(init=False)
    clock: ProcessClock = field(init=False)
    book: RecordingJournal | None = None
    root: "asyncio.Task[None] | None" = None

    @property
    def dead(self) -> bool:
        return self.killed

    @property
    def works(self) -> bool:
        return not (self.killed or self.over or self.owner.frozen)

    @property
    def state(self) -> State | None:
        return self.loop.state if self.loop else None

    def fault(self, on: str) -> Act | None:
        return self.take(on, self)

    def called(self, kind: str, name: str, route: Route | None) -> None:
        self.tell(self, kind, name, route)

    def active(self, what: str) -> bool:
        return self.is_active(what)

    def start(
        self,
        book: RecordingJournal,
        recorded: State,
        mode: Mode,
        rules: Rules,
        engine: Engine,
        last_entry: datetime,
        config: ConfigFile,
    ) -> None:
        self.began_s, self.book = self.world.at_s, book
        self.clock = ProcessClock(self.world.loop.wall, self.world.loop.time)
        self.clock.continue_after(last_entry)
        history = History()
        self.loop = build_loop(
            rules,
            recorded,
            mode=mode,
            journal=cast("Journal", book),
            engine=engine,
            traffic=SimTraffic(self),
            sensors=(Metrics(self),),
            state_dir=Path("/nowhere"),
            now=self.clock.now,
            on_state=history.add_state,
            aggregator=SimFold(span_s=6.0, longest_s=6.0, fresh_s=2.0, wanted=self._reads),
        )
        history.add_state(self.loop.state)
        self.runtime = real.Daemon(
            loops={recorded.target: self.loop},
            journal=cast("Journal", book),
            history=history,
            time=self.clock,
            config=ConfigReload(
                config=cast("Config", config.in_force),
                load=cast("Callable[[], Config]", config.load),
                rules=cast("Callable[[Config, str], Mapping[str, NextRules]]", config.next_rules),
                deliveries=lambda *_: (),
                journal=cast("Journal", book),
                now=self.clock.now,
            ),
        )
        self.root = self.do(self.loop.run(self.epoch, lambda: None))
        self.root.add_done_callback(self._done, context=self.world.loop.world)

    def _reads(self) -> bool:
        state = self.loop.state if self.loop is not None else None
        return state is not None and (state.phase in ASKING or state.switching is not None)

    def do(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self.world.loop.create_task(work, context=self.world.loop.owned_by(self.owner))

    def say(self, event: Event) -> None:
        """Submit an operator's event past the API; rejected if it cannot be journalled."""

        async def submit() -> None:
            assert self.loop is not None
            try:
                await self.loop.submit(event)
            except JournalError:
                return

        if self.works:
            self.do(submit())

    def reload(self, actor: str, done: Callable[[Exception | None], None]) -> None:
        """Reload the config, by a person or by SIGHUP; `done` gets why it was refused."""

        async def take() -> None:
            try:
                await self.runtime.reload(actor)
            except (ConfigError, JournalError) as error:
                done(error)
            else:
                done(None)

        if self.works:
            self.do(take())

    def kill(self, again_s: float | None = RESTART_S) -> None:
        """SIGKILL: its remaining tasks have no effect. systemd starts the next process."""
        if self.killed:
            return
        self.killed = True
        if again_s is not None:
            self.world.loop.outside(again_s, self.again)
        self.world.loop.thaw(self.owner)
        if self.root is not None:
            self.root.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if not self.killed:
            self.over = True
            self.ended(self, error)


def died_of(error: BaseException | None) -> BaseException | None:
    """The first error of a group that is not Killed."""
    if isinstance(error, BaseExceptionGroup):
        causes = [cause for cause in map(died_of, error.exceptions) if cause is not None]
        expected = [cause for cause in causes if isinstance(cause, FencedError | JournalError)]
        return next(iter([cause for cause in causes if cause not in expected] or expected), None)
    return None if isinstance(error, Killed) else error

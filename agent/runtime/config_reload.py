"""A changed config file for the running daemon: all of the change comes into force, or nothing."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, Actor, JournalEntry
from flettner.agent.config.changes import ConfigChange, ReloadReport, find_changes, find_fixed
from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError, JournalError, RestartNeededError
from flettner.agent.domain.ports import Now
from flettner.agent.notify.delivery import NoticeDelivery
from flettner.agent.runtime.loop import NextRules, TargetLoop

log = structlog.get_logger()


class Reconfigurable(Protocol):
    """Those who use the config: the daemon's loops and its deliveries of notices."""

    @property
    def loops(self) -> Mapping[str, TargetLoop]: ...

    @property
    def deliveries(self) -> Sequence[NoticeDelivery]: ...

    def deliver(self, deliveries: Sequence[NoticeDelivery]) -> None:
        """Run exactly these from now on."""
        ...


@dataclass(slots=True, kw_only=True)
class ConfigReload:
    """Reloads the config. `rules` and `deliveries` build what its users get."""

    config: Config  # in force
    load: Callable[[], Config]  # raises ConfigError
    rules: Callable[[Config, str], Mapping[str, NextRules]]  # by target; for whom
    deliveries: Callable[[Config, Config, Sequence[NoticeDelivery]], Sequence[NoticeDelivery]]
    """Of the earlier and the new config; of those that run, the ones without a change go on."""
    journal: Journal
    now: Now
    failure: str = ""  # why the file was not taken the last time; empty: it was
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take_file(self, actor: str, users: Reconfigurable) -> ReloadReport:
        """Put the file into force; `actor` may be empty, as by a signal.

        Raises ConfigError, RestartNeededError or JournalError; then nothing changed.
        """
        async with self._lock:
            try:
                fresh = await asyncio.to_thread(self.load)
                changes = find_changes(self.config.values, fresh.values)
                self._refuse_fixed(changes)
                before, after = self.rules(self.config, actor), self.rules(fresh, actor)
                deliveries = self.deliveries(self.config, fresh, users.deliveries)
                if changes:
                    self._record(actor, changes)
            except (ConfigError, JournalError) as error:
                self.failure = str(error)
                log.error("config.not_reloaded", why=self.failure)  # noqa: TRY400 - the message is complete
                raise
            self.config, self.failure = fresh, ""
            for name, loop in users.loops.items():
                if after[name] != before[name]:
                    loop.reconfigure(after[name])
            users.deliver(deliveries)
        waiting = tuple(name for name, loop in users.loops.items() if loop.awaits_rules)
        log.info("config.reloaded", changed=[change.key for change in changes], waiting=waiting)
        return ReloadReport(changes=changes, waiting=waiting)

    def _refuse_fixed(self, changes: tuple[ConfigChange, ...]) -> None:
        fixed = list(find_fixed(changes))
        modes = next(((c.before, c.after) for c in changes if c.key == "agent.mode"), ())
        if "advise" in modes:
            fixed.append("agent.mode (advise has no proxy)")
        if fixed:
            raise RestartNeededError(
                f"a restart is needed for {', '.join(fixed)}: nothing was reloaded, not even what else"
                " changed; restart the daemon, or take these changes back"
            )

    def _record(self, actor: str, changes: tuple[ConfigChange, ...]) -> None:
        """Journal the difference before it comes into force. Raises JournalError."""
        self.journal.append(
            JournalEntry(
                at=self.now(),
                actor=Actor(kind="person", id=actor) if actor else DAEMON,
                action="config.reloaded",
                why=f"{len(changes)} key{'s' if len(changes) > 1 else ''} of the config changed",
                before={change.key: change.before for change in changes},
                after={change.key: change.after for change in changes},
                epoch=self.journal.epoch(),
            )
        )

"""Leave flettner without its daemon: the operator's own server takes over, and the proxy ends.

The steps are those of a rollout: the server starts beside the one in force, gets the traffic, and the other
one drains and ends. Each step is idempotent, so that an interrupted departure is repeated.
"""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol, cast

from flettner.agent.audit import checkpoints
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import Actor, JournalEntry
from flettner.agent.config.loader import Config, Target
from flettner.agent.domain.effects import Drain, Effect, Launch, Retire, Route, Stop
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import Drained, EffectFailed, Event
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Engine, Traffic
from flettner.agent.domain.state import Phase, State
from flettner.agent.runtime.effect_runner import EffectRunner
from flettner.agent.runtime.lock import hold_lock
from flettner.agent.runtime.wiring import bind_actuators, read_newest_epoch
from flettner.primitives.wall_clock import utc_now

STARTED, RETURNED, DONE, FAILED = (
    "target.leaving",
    "target.given_back",
    "target.left",
    "target.leaving_failed",
)
_AT_REST = frozenset({Phase.OBSERVING, Phase.CHECKING, Phase.PROPOSED, Phase.COOLDOWN, Phase.HALTED})


class HomeEngine(Protocol):
    """An engine that can start the operator's own server again."""

    async def start_home(self, server: Server, deadline_s: float) -> Server:
        """Start it with the setting of `server`, without flettner's marks, and return it healthy.

        Idempotent; raises ActError, and then nothing new runs.
        """
        ...


class LeavableTraffic(Protocol):
    async def leave(self, quiet_s: float, wait_s: float) -> bool:
        """Stop listening once no request came for `quiet_s`; false if some still come after `wait_s`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    stop_first: bool = False  # end the server in force before the operator's starts, where both do not fit
    quiet_s: float = 60.0  # without a request, after which the proxy counts as unused
    wait_s: float = 3600.0  # for the clients to leave the proxy


@contextmanager
def open_offline(config: Config) -> Iterator[Journal]:
    """Hold the lock of the state directory, and open the journal. Raises JournalError beside a daemon."""
    with hold_lock(config.state_dir):
        signer = checkpoints.find_signer(config.state_dir)
        journal = Journal.open(
            config.state_dir / "audit.jsonl", now=utc_now, limits=config.audit, signer=signer
        )
        try:
            yield journal
        finally:
            journal.close()


async def leave(
    config: Config, target: Target, journal: Journal, wishes: Wishes, say: Callable[[str], None]
) -> bool:
    """Return whether nothing of flettner's is left for a target of processes or containers; audited.

    Raises ActError. A target of another engine is left as it is.
    """
    epoch = max(journal.epoch(), await read_newest_epoch(config)) + 1
    engine, traffic = bind_actuators(config, target, epoch)
    if not hasattr(engine, "start_home"):
        return True
    recorded = journal.states().get(target.name, State(target=target.name))
    if recorded.phase not in _AT_REST:
        raise ActError(
            f"{target.name} is in {recorded.phase.value}: start the daemon, `flettner abort {target.name}` "
            "or let the rollout end, and stop it again"
        )

    def record(action: str, why: str, state: State | None = None) -> None:
        journal.append(
            JournalEntry(
                at=utc_now(),
                actor=_find_actor(),
                action=action,
                target=target.name,
                why=why,
                epoch=epoch,
                state=state,
            )
        )

    record(STARTED, "the operator's own server takes over" + (", stopped first" * wishes.stop_first))
    departure = Departure(target=target, engine=engine, traffic=traffic, epoch=epoch, say=say)
    try:
        await departure.serve_from_home(recorded, stop_first=wishes.stop_first)
        fresh = State(target=target.name, epoch=epoch, outcomes=recorded.outcomes, budget=recorded.budget)
        why = "; ".join(departure.done) or "no server of flettner's ran"
        record(RETURNED, why, fresh)  # a later daemon begins anew, with the server that it finds
        left = await departure.leave_proxy(wishes)
    except ActError as error:
        record(FAILED, error.why)
        raise
    record(DONE if left else FAILED, "nothing of flettner's runs" if left else "clients still ask the proxy")
    return left


@dataclass(slots=True, kw_only=True)
class Departure:
    """The steps of one target; `done` has a sentence for each, which `say` shows at once."""

    target: Target
    engine: Engine
    traffic: Traffic
    epoch: int
    say: Callable[[str], None]
    done: list[str] = field(default_factory=list)
    _number: int = 0
    _events: list[Event] = field(default_factory=list)
    _runner: EffectRunner = field(init=False)

    def __post_init__(self) -> None:
        self._runner = EffectRunner(
            engine=self.engine,
            traffic=self.traffic,
            emit=self._events.append,
            now=utc_now,
            epoch=self.epoch,
        )

    async def serve_from_home(self, recorded: State, *, stop_first: bool) -> None:
        """Let the operator's server carry the traffic, and end flettner's. Raises ActError."""
        running = await self.engine.observe()
        ours = [server for server in running if server.ours]
        if not running and recorded.fleet.blue is not None and recorded.fleet.blue.ours:
            raise ActError(
                f"{recorded.fleet.blue.name} does not run: start the daemon, which starts it again"
            )
        if not ours:
            return
        if len(ours) > 1:
            raise ActError(
                f"{len(ours)} servers of flettner's run ({', '.join(each.name for each in ours)}), and your "
                "address is one: go by the steps that `detach` prints"
            )
        (server,) = ours
        fits = await self.engine.preflight([server], server.setting, "auto")
        if stop_first:
            home = await self._replace(server, fits.outage_s)
        elif fits.problem or fits.strategy != "surge":
            raise ActError(
                f"your server does not fit beside {server.name} ({fits.problem or fits.why}): with "
                f"--stop-first {server.name} ends before, and {self._describe_outage()}"
            )
        else:
            home = await cast("HomeEngine", self.engine).start_home(server, self.target.plan.start_s)
            self._note(f"your server {home.name} serves at {home.address}, with the flags of {server.name}")
            await self._route(home, server)
            lost = await self._drain(server)
            self._note(f"{server.name} ends" + (f", and with it {lost} requests" if lost else ", drained"))
        await self._perform(Retire(number=self._next(), server=server))
        if await self.traffic.observe() is not None:
            await self._route(home)

    async def leave_proxy(self, wishes: Wishes) -> bool:
        """End the proxy once no client asks it. Raises ActError."""
        seen = await self.traffic.observe()
        if seen is None or not hasattr(self.traffic, "leave"):
            return True
        homes = [seen.addresses[name] for name, weight in seen.weights.items() if weight]
        listen = self.target.listen
        self.say(
            f"point the clients at {', '.join(homes) or 'your server'} now: until then Envoy at {listen} "
            f"sends their requests there. It ends once none came for {wishes.quiet_s:g} s, "
            "and then refuses who still asks it"
        )
        left = await cast("LeavableTraffic", self.traffic).leave(wishes.quiet_s, wishes.wait_s)
        if left:
            self._note(f"the proxy listens no more at {listen}; no request was open")
        else:
            self.say(f"clients still ask {listen} after {wishes.wait_s:g} s: Envoy stays; repeat this later")
        return left

    async def _replace(self, server: Server, outage_s: float) -> Server:
        """End the server before the operator's starts; it starts again if that one does not."""
        self.say(self._describe_outage())
        closed_s = outage_s or self.target.plan.start_s
        await self._perform(
            Route(
                number=self._next(),
                servers=(server,),
                weights={server.name: 0},
                fallback="",
                closed_s=closed_s,
            )
        )
        lost = await self._drain(server)
        await self._perform(Stop(number=self._next(), server=server))
        self._note(f"{server.name} is stopped" + (f"; {lost} requests were cut" if lost else ", drained"))
        try:
            home = await cast("HomeEngine", self.engine).start_home(server, self.target.plan.start_s)
        except ActError:
            await self._perform(
                Launch(number=self._next(), server=server, deadline_s=self.target.plan.start_s)
            )
            await self._route(server)
            raise
        await self._route(home, server)
        self._note(f"your server {home.name} serves at {home.address}, with the flags of {server.name}")
        return home

    def _describe_outage(self) -> str:
        hold = self.traffic.hold
        if hold is None:
            return "requests are refused (503, Retry-After) until yours serves: they are lost unless repeated"
        return (
            f"requests wait up to {ceil(hold.wait_s)} s for yours; later ones, and more than {hold.requests} "
            "at once, are refused (503, Retry-After)"
        )

    async def _route(self, serving: Server, *others: Server) -> None:
        weights = {serving.name: 100} | {other.name: 0 for other in others}
        route = Route(number=self._next(), servers=(serving, *others), weights=weights, fallback=serving.name)
        await self._perform(route)

    async def _drain(self, server: Server) -> int:
        """Return the number of requests that were still open at the deadline."""
        await self._perform(Drain(number=self._next(), server=server, deadline_s=self.target.plan.drain_s))
        drained = self._events[-1]
        return drained.open if isinstance(drained, Drained) else 0

    async def _perform(self, effect: Effect) -> None:
        await self._runner.perform(effect)
        if isinstance(failed := self._events[-1], EffectFailed):
            raise ActError(failed.why, failed.log)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _note(self, sentence: str) -> None:
        self.done.append(sentence)
        self.say(sentence)


def _find_actor() -> Actor:
    """Who writes the state directory is the daemon's user or root: an admin, as on the unix socket."""
    name = ""
    with suppress(KeyError, OSError):
        name = os.environ.get("SUDO_USER") or getpass.getuser()
    uid = os.geteuid()
    return Actor(kind="person", id=f"uid {uid} ({name})" if name else f"uid {uid}", role="admin")

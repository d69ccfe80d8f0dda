"""What the core asks of the world. Adapters satisfy these by shape; nobody inherits.

Every module `sensors/NAME.py`, `policies/NAME.py`, `actuators/NAME.py` ends with `plugin = TheClass`, a
frozen dataclass whose fields are the options of its config table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from agent.domain.answers import GoldenAnswer
from agent.domain.calibration import Calibration
from agent.domain.effects import Route
from agent.domain.events import ServerLost
from agent.domain.model import (
    Bound,
    Forecast,
    Outcome,
    Plan,
    PreflightResult,
    Proposal,
    Server,
    Slo,
    Step,
    Strategy,
)
from agent.domain.reading import Reading, Sample
from agent.domain.request_counts import RequestCounts
from agent.domain.trial import Observation, Trial
from vllm_facts.deployment import Deployment
from vllm_facts.values import Setting

Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a policy may know besides the reading."""

    setting: Setting  # in force
    slo: Slo
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    outcomes: Sequence[Outcome] = ()  # oldest first
    case: Deployment | None = None  # card, model and environment, where they are known


class Policy(Protocol):
    """Says what it would change, in order of urgency. Pure: the same arguments give the same answer."""

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`fail`: green is proved worse. `pass`: proved not worse. `wait`: neither, yet. `hold`: this second
    cannot be evidence at all."""

    kind: Literal["pass", "fail", "wait", "hold"]
    why: str
    bad: int = 0  # green's requests of this step that failed or were late by the judge's own edges


class Judge(Protocol):
    """Compares green with blue. Pure: what it knows is in the trial, which the journal keeps."""

    def update(
        self,
        trial: Trial,
        *,
        step: Step,
        slo: Slo,
        observation: Observation,
        green: RequestCounts,
        blue: RequestCounts,
        record: RequestCounts,
    ) -> tuple[Trial, Verdict]:
        """The trial with one more second of a step, and what it says now.

        `green`, `blue`: counts of this step so far, with this second. `record`: blue alone under full load,
        before the canary.
        """
        ...

    def forecast(
        self,
        plan: Plan,
        *,
        slo: Slo,
        recent: RequestCounts,
        recent_s: float,
        calibration: Mapping[str, Calibration],
    ) -> Forecast | None:
        """How long the plan will take at the traffic of the last `recent_s` seconds; None: not known."""
        ...

    def gain(
        self,
        trial: Trial,
        *,
        slo: Slo,
        level: tuple[RequestCounts, RequestCounts],
        green: RequestCounts,
        record: RequestCounts,
    ) -> str:
        """What green is measurably better at, in a sentence with its numbers; "" when at nothing.

        `level`: green and blue beside each other at equal load; `green`: the hold-back's counts.
        """
        ...


class View(Protocol):
    """What a sensor may know of its target while it runs."""

    @property
    def target(self) -> str: ...
    @property
    def state_dir(self) -> Path: ...
    def servers(self) -> Sequence[Server]:
        """The servers that have an address now; changes while a rollout goes on."""
        ...


class Sensor(Protocol):
    """Turns the world into samples until cancelled. A lost source is a SourceState, not an exception."""

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where an actuator works: given once, by the daemon."""

    target: str
    state_dir: Path  # of the target; survives the daemon
    epoch: int  # grows at every start of a daemon; an actuator refuses to act under a newer one


class EnginePlugin(Protocol):
    """The options of an engine, as the config file gives them."""

    sensors: ClassVar[Mapping[str, tuple[str, ...]]]
    """Sensors that are on with this engine unless the file says `NAME = false`, by name, each with the
    options that it takes over from the engine's table when its own does not give them."""

    def bind(self, site: Site) -> "Engine":
        """Return the engine of these options at this site; no I/O."""
        ...


class Engine(Protocol):
    """Starts and stops vLLM servers. They outlive the daemon. Every call may be repeated."""

    async def problems(self) -> Sequence[str]:
        """Why this engine cannot work here, one sentence with the fix each; empty when it can."""
        ...

    async def observe(self) -> Sequence[Server]:
        """The target's servers that run now, found by mark or configured address; starts nothing."""
        ...

    async def preflight(
        self, servers: Sequence[Server], setting: Setting, wanted: Strategy | Literal["auto"]
    ) -> PreflightResult:
        """What would come of giving all `servers` this setting. Touches nothing of theirs.

        A value that vLLM does not take, or no room, is a Prospect with a problem. Raises ActError when the
        question itself could not be asked.
        """
        ...

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """Start `server` (or find it started) and return it with its address once /health answers 200.

        It is made like `server.like`, where that is known, but for the setting. What `stop` has stopped is
        started again as it was; then a failure leaves it stopped. Raises ActError, with the log's last
        lines, when it exits, or is not healthy within `deadline_s`; what was started is then gone. On
        cancellation too.
        """
        ...

    async def warm_up(
        self, server: Server, requests: int, deadline_s: float, prompts: Sequence[str] = ()
    ) -> None:
        """Send requests of several lengths, and these prompts, straight to it until it compiles no more.

        Raises ActError if too many fail, or it still compiles at the deadline.
        """
        ...

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        """What the server itself, not the proxy, says to each prompt at temperature 0, in their order.

        One that fails is an Answer that says so. Raises ActError when the server cannot be asked at all.
        """
        ...

    async def busy(self, server: Server) -> int | None:
        """Requests running and waiting in the engine; None when it does not answer."""
        ...

    async def log(self, server: Server) -> tuple[str, ...]:
        """The last lines that it wrote, oldest first; () when there are none, or none any more.

        Fit to be shown: a few dozen, of at most 500 characters each, without control characters and without
        the secrets that it was started with. Raises ActError when they cannot be read.
        """
        ...

    async def stop(self, server: Server) -> None:
        """End it as `retire` does, and wait until the memory it held is free, but keep what starts it again.

        Nothing but `launch` starts it again: not the container runtime, not the next observe.
        """
        ...

    async def retire(self, server: Server) -> None:
        """Stop it (SIGTERM, then SIGKILL of the whole group); returns when it is gone. Fine if it is gone."""
        ...

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        """Until the server is gone: say so (`gone`) and return. Fine if it is gone already.

        Before that, say once each time that it stops answering /health (not `gone`), and watch on.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSeen:
    """What the proxy is told to do now. `weights` as in force without the lease."""

    weights: Mapping[str, int]
    addresses: Mapping[str, str]
    epoch: int
    leased: str | None = None
    listening: bool = True


class Traffic(Protocol):
    """Splits the target's traffic over its servers. The proxy outlives the daemon."""

    def bind(self, site: Site) -> "Traffic": ...

    async def problems(self) -> Sequence[str]: ...

    async def observe(self) -> TrafficSeen | None:
        """None: no proxy was ever configured here."""
        ...

    async def route(self, route: Route) -> None:
        """Make the split so, starting the proxy if it does not run; returns when it is in force.

        Raises ActError when the proxy refuses or does not confirm, FencedError under a newer epoch, and
        writes nothing unless every weight is in 0..100 and they sum to 100, or all are 0 and it is closed.
        """
        ...

    async def keep_alive(self, route: Route) -> None:
        """Renew the lease of a route in force, and see that the proxy runs. Cheap: called every second."""
        ...

    async def end_lease(self) -> bool:
        """Take now what is leased from who has it; whether there was anything. For a daemon that has ended.

        Nothing else of the split changes, and the next daemon may renew it. Raises ActError.
        """
        ...

    async def in_flight(self, server: str) -> int | None:
        """Requests the proxy has open to the server; None when it cannot say."""
        ...

    async def stop(self) -> None:
        """Cut every request and end the proxy: for demos and tests, never asked by the machine."""
        ...

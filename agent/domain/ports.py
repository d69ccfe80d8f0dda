"""The interfaces between the core and the adapters, which satisfy them structurally, without inheritance.

Every module `sensors/NAME/plugin.py`, `policies/NAME.py`, `actuators/NAME/plugin.py` ends with
`plugin = TheClass`, a frozen dataclass whose fields are the options of its config table.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.digest import site_digest
from flettner.agent.domain.effects import Route
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.headroom import Headroom, KvPeak
from flettner.agent.domain.model import (
    Adapter,
    Bound,
    Hold,
    Outcome,
    PreflightResult,
    Proposal,
    Server,
    Slo,
    Strategy,
)
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.reading import Reading, Sample
from flettner.agent.domain.regimes import RegimeAdvice
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.values import Knob, Setting

Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The input of a policy besides the reading."""

    setting: Setting  # in force
    slo: Slo
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    outcomes: Sequence[Outcome] = ()  # oldest first
    config: ServeConfig | None = None  # card, model, version and environment, as far as known
    findings: Sequence[Finding] = ()  # of lint, on the setting in force
    model_search: ModelSearchResult | None = None  # of the performance model; None: it has no accepted law
    strategy: Strategy | Literal["auto"] = (
        "auto"  # as configured: with "surge" green starts beside the others
    )

    headroom: Headroom | None = None  # None: it is not known, or no saving is wanted
    peak_rps: float | None = None  # of all servers, in the busiest minute of the last week, as far as known
    kv_peak: KvPeak | None = None  # the fullest KV cache of the last week, as far as known
    regimes: RegimeAdvice | None = None  # of the performance model; None: one setting does
    servers: int = 1  # that serve, each replica counted
    saves: bool = False  # whether what only takes less hardware may be suggested

    def bound(self, knob: Knob) -> Bound:
        """The operator's bound of the knob; without one it allows every value."""
        return self.bounds.get(knob, Bound())


class Policy(Protocol):
    """Proposes changes, the most urgent first. Pure: the same arguments give the same result.

    One with a true `uses_model_search` gets the performance model's advice in the context, which costs CPU;
    one with a true `uses_regimes` gets what it says of two kinds of load, once a day.
    """

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]: ...


class View(Protocol):
    """A sensor's view of its target while it runs."""

    @property
    def target(self) -> str: ...
    @property
    def state_dir(self) -> Path: ...
    @property
    def slo(self) -> Slo: ...
    def servers(self) -> Sequence[Server]:
        """The servers that have an address now; changes during a rollout."""
        ...


class Sensor(Protocol):
    """Emits samples until cancelled. A lost source is a SourceState, not an exception.

    `slo_problems(slo)`, optional: why these options contradict the promises, each as `key: problem`.
    """

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The target and directory that an actuator is bound to."""

    target: str
    state_dir: Path  # of the target; persists across restarts
    epoch: int  # increases at every start of a daemon; an actuator refuses to act under a newer one
    acts: bool = True  # False in advise mode: a preflight starts nothing, and nothing is changed

    @property
    def digest(self) -> str:
        return site_digest(self.target, self.state_dir)


class Lock(Protocol):
    """Lets one daemon act at a time where the state directory's lock cannot, as there may be two of these."""

    async def problems(self, state_dir: Path) -> Sequence[str]:
        """Why no daemon may act here, one sentence with the key and the fix each; empty if one may."""
        ...

    def hold(self, state_dir: Path, now: Now) -> AbstractAsyncContextManager[None]:
        """Wait for the lock, logging why, and hold it.

        If it is lost meanwhile the body is cancelled, and LockLostError raised at its end.
        """
        ...

    async def remove(self) -> None:
        """Remove the lock's remains for good. Raises ActError."""
        ...


class EnginePlugin(Protocol):
    """The options of an engine, as the config file gives them.

    `exclusive`, optional: the identities of the servers that these options name, each as (option, name,
    qualifier, ...). Two targets must not share one.
    """

    sensors: ClassVar[Mapping[str, tuple[str, ...]]]
    """Sensors that this engine enables unless the config has `NAME = false`, by name, each with the options
    that it inherits from the engine's table unless its own table sets them."""

    def lock(self) -> Lock | None:
        """Return the lock that a daemon needs to act; None: that of the state directory is enough."""
        ...

    def bind(self, site: Site) -> "Engine":
        """Return the engine of these options at this site; no I/O."""
        ...


class Engine(Protocol):
    """Starts and stops vLLM servers, which outlive the daemon. Every call is idempotent.

    `progress`: what a preflight does that takes long, such as pulling an image; empty: nothing to tell.
    """

    progress: str

    async def problems(self) -> Sequence[str]:
        """Why this engine cannot work here, one sentence with the fix each; empty if it can."""
        ...

    async def obstacles(self) -> Sequence[str]:
        """Those of the problems that are none at a site that does not act: why it changes no server."""
        ...

    async def observe(self) -> Sequence[Server]:
        """The target's running servers, found by mark or configured address; starts nothing."""
        ...

    async def newest_epoch(self) -> int:
        """The newest epoch of the daemons that started or kept a server here; 0: none. Raises ActError."""
        ...

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        """Compute what giving all `servers` this setting would take; changes nothing that runs.

        `start`: the image, program and environment that the change names. An image is pulled, and the
        result has its digest in `resolved`; one that cannot be pulled is a problem. `gpu`: the model of the
        servers' GPUs, or NO_GPU, for what is known of a release; empty: not known.

        Where the site does not act nothing is started: a result without vLLM's own check is `unchecked`.
        A value that vLLM does not accept, or missing capacity, is a PreflightResult with a problem. Raises
        ActError if the preflight itself fails.
        """
        ...

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """Start `server` (or find it started) and return it with its address once /health answers 200.

        One that runs with fewer replicas gets the missing ones; if that fails, it keeps those that it had.
        It is a copy of `server.like`, if that is known, except for the setting and `server.start`. A server
        that `stop` stopped is started unchanged, and left stopped on failure. Raises ActError, with the last
        log lines, if it exits or is not healthy within `deadline_s`; a new server is then removed, as on
        cancellation.
        """
        ...

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        """Send requests of several lengths, and `prompts`, to the server itself until it compiles no more.

        Then one to each adapter that it serves, and `prefixes` once for each name, the first one last.

        Raises ActError if too many fail, if it still compiles at the deadline, or if an adapter does not
        answer. A prefix that it refuses, or for which there is no time, is only logged.
        """
        ...

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        """Send each prompt directly to the server at temperature 0; answers in the order of the prompts.

        A failed request yields an answer with finish_reason "failed". Raises ActError if the server cannot be
        reached at all.
        """
        ...

    async def check_address(self, server: Server) -> None:
        """Raises ActError if another process than the server may be reached at its address."""
        ...

    async def busy(self, server: Server) -> int | None:
        """Requests running and waiting in the engine; None if it does not answer."""

    async def adapters(self, server: Server) -> tuple[Adapter, ...] | None:
        """The LoRA adapters that the server lists, on any of its replicas; None if it does not answer."""

    async def put_adapters(
        self, server: Server, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> Sequence[str]:
        """Load adapters into every replica of the server, and unload others by name, as a client would.

        Return why it refused some, a sentence with the name each. Raises ActError if it does not answer.
        """
        ...

    async def log(self, server: Server) -> tuple[str, ...]:
        """The server's last log lines, oldest first; () if there are none.

        Safe to show: a few dozen, of at most 500 characters each, without control characters and without the
        secrets that it was started with. Raises ActError if they cannot be read.
        """

    async def step_log(self, server: Server) -> tuple[str, ...]:
        """The last lines that vLLM logged about its steps, of one replica, oldest first; () without any."""

    async def set_knobs(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None = None
    ) -> None:
        """Put these values of hot knobs in force, and those of the server's start for its other hot knobs.

        `number`: epoch and number of the effect. The same number with the same values renews the lease; below
        the one in force nothing changes. When the lease ends, the values that were last set without a lease
        are in force again. Raises DriftError if a third party, or a newer daemon, has set values since;
        ActError if the server has no such knobs, refuses a value or does not answer.
        """
        ...

    async def stop(self, server: Server, keep: int = 0) -> str | None:
        """Stop the server as `retire` does and wait until its memory is free, but keep what a launch needs.

        A server without open requests may also sleep, if that frees its memory. Return a sentence on how it
        was stopped where there is more than one way.

        Only `launch` starts it again: neither the container runtime nor the next observe does. Of a server
        with replicas `keep` serve on: the others get no new requests, finish theirs, and end.
        """
        ...

    async def retire(self, server: Server) -> str | None:
        """Stop the server (SIGTERM, then SIGKILL of the full group) and wait for its exit. Idempotent.

        Where people own the server, the one that replaces it may move into its place: return that one's name.
        It is left to its owner from then on, as an adopted server is. It serves there what it served before,
        or `server.adapters` where it cannot list that any more.
        """
        ...

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        """Watch until the server exits, emit ServerLost with `gone`, and return; at once if it has exited.

        Meanwhile emit ServerLost without `gone` each time the server stops answering /health. Return without
        an event if its owner has changed its flags or replicas while it served on: the caller observes it
        again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSeen:
    """The proxy's present configuration. `weights` as in force without the lease."""

    weights: Mapping[str, int]
    addresses: Mapping[str, str]
    epoch: int
    leased: str | None = None
    listening: bool = True


class Traffic(Protocol):
    """Splits the target's traffic over its servers; the proxy outlives the daemon.

    Its plugin may have `sensor_options`: by sensor, the options that it gets unless its own table sets them;
    and `shared_options`: names of options that all targets give the same value, since they share a program.
    `counts_requests`: false if `in_flight` never knows, and only the engine counts a server's open requests.
    `hold`: how new requests wait while the route is closed, also while the daemon is dead; None: each is
    refused at once.
    """

    @property
    def counts_requests(self) -> bool: ...
    @property
    def hold(self) -> Hold | None: ...

    async def problems(self) -> Sequence[str]:
        """Why every rollout would fail here, one sentence each. Raises ActError if unknown yet."""
        ...

    async def observe(self) -> TrafficSeen | None:
        """The present configuration; None if no proxy was ever configured here."""
        ...

    async def route(self, route: Route) -> None:
        """Put the split in force, starting the proxy if needed; return once it is in force.

        Raises ActError if the proxy refuses or does not confirm, FencedError under a newer epoch. Writes
        nothing unless all weights are in 0..100 and sum to 100, or all are 0 and the route is closed.
        """
        ...

    async def keep_alive(self, route: Route) -> None:
        """Renew the lease of a route in force, and ensure that the proxy runs. Cheap: called every second."""
        ...

    async def end_lease(self) -> bool:
        """End the lease of a stopped daemon now; return whether there was one.

        The rest of the split stays, and the next daemon may renew the lease. Raises ActError.
        """
        ...

    async def in_flight(self, server: str) -> int | None:
        """The proxy's open requests to the server; None if unknown."""
        ...

    async def is_settled(self) -> bool:
        """Whether no part of the proxy can send a request by an earlier route any more.

        `route` returns when the proxy says that the split is in force; a thread of it that gets no CPU may
        follow later. To be asked at least twice a second, since the answer may come from what changes.
        """
        ...

    async def stop(self) -> None:
        """Cut every request and stop the proxy: for demos and tests, never used by the machine."""
        ...

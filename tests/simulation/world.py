"""The host: servers, a proxy that routes by split and lease, and clients whose every request is followed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.vllm_facts.values import Setting
from tests.simulation.clock import VirtualLoop
from tests.support.hot_servers import HotServers, knobs_of

PERCENT = 100
LONGEST_LEASE_S = 60.0  # the proxy ignores leases with a later end: a wrong clock
BAD = 0.5  # of its requests
SETTLES_S = 1.5  # until each thread of a proxy with late threads works by a new split
SLOTS = 64  # to which the cap of a running server can be raised
WAKES_S = (0.1, 0.5)
GIVES_UP_S = 12.0  # a client timeout
ANSWERS = frozenset({"healthy", "wedged"})  # to /health
RUNS = frozenset({"starting", "healthy", "wedged", "hung"})


@dataclass(slots=True, kw_only=True)
class Process:
    """One server: its setting and its state."""

    name: str
    setting: dict[str, object]
    address: str
    ours: bool
    epoch: int = 0
    like: str = ""
    status: str = "starting"
    since_s: float = 0.0
    errors: float = 0.0  # share of its requests, by a fault of this process alone
    adapters: set[str] = field(default_factory=set)  # that clients have loaded
    asleep: str = ""  # "wakes", or why a launch cannot wake it; empty: it does not sleep

    @property
    def answers(self) -> bool:
        return self.status in ANSWERS


@dataclass(slots=True, kw_only=True)
class Split:
    """The last route of the proxy."""

    epoch: int
    number: int
    weights: dict[str, int]
    addresses: dict[str, str]
    fallback: str
    leased: str | None = None
    expires_wall_s: float = 0.0
    closed_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Client:
    """A request from its acceptance to its end."""

    id: int
    server: str
    began_s: float
    outcome: str  # planned outcome
    status: int
    ended: bool = False
    ended_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Outcomes of all requests that the proxy accepted."""

    accepted: int = 0
    answered: int = 0
    failed: int = 0  # by the server
    cut: int = 0  # by a requested stop
    turned_away: int = 0  # 503 with Retry-After: never accepted


@dataclass(slots=True, kw_only=True)
class Boot:
    """Behaviour of servers with `setting`: state `becomes` after `turns_s` of health."""

    takes_s: tuple[float, float] = (1.0, 3.0)
    fails: bool = False
    errors: float = 0.0  # share of its requests
    nonsense: bool = False  # wrong answers
    becomes: str = ""
    turns_s: float = 0.0


@dataclass(repr=False, slots=True, kw_only=True)
class World:
    """The simulated environment of a daemon. `changed` is called after each change."""

    loop: VirtualLoop
    random: Random
    boot_of: Callable[[Process], Boot]
    rate: int = 5  # requests a second
    is_long: bool = False  # the answers
    errs: bool = True  # whether any setting lets requests fail
    sleeps: bool = False  # servers that are stopped sleep, if they have no open requests
    has_late_threads: bool = False  # of the proxy: one without CPU works by the split before for a while
    has_hot_knobs: bool = False  # whether the servers run with flettner's scheduler class
    hot: HotServers = field(default_factory=lambda: HotServers(version="0.30.0"))
    servers: dict[str, Process] = field(default_factory=dict)
    stopped: dict[str, Process] = field(default_factory=dict)
    split: Split | None = None
    lateness: Random = field(default_factory=lambda: Random(0))  # noqa: S311 - not for cryptography
    told_s: float = 0.0  # when the proxy was told the split
    proxy_up: bool = True
    quiet: bool = False  # no further spontaneous faults
    ledger: Ledger = field(default_factory=Ledger)
    records: list[Client] = field(default_factory=list)  # the access log
    changed: Callable[[str, str, int], None] = lambda what, name, epoch: None  # noqa: ARG005
    cut_open: Callable[[Process, int, int], None] = lambda process, requests, epoch: None  # noqa: ARG005
    weightless_s: dict[str, float] = field(default_factory=dict)  # since when a server has no share
    open_of: dict[str, dict[int, Client]] = field(default_factory=dict)
    _due: list[tuple[float, int, Client]] = field(default_factory=list)
    _ids: "count[int]" = field(default_factory=count)
    _ports: "count[int]" = field(default_factory=lambda: count(8101))
    _waiting: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    @property
    def at_s(self) -> float:
        return self.loop.now_s

    @property
    def wall_s(self) -> float:
        return self.loop.now_s + self.loop.skew_s

    # Proxy.

    def lease_holds(self) -> bool:
        left_s = self.split.expires_wall_s - self.wall_s if self.split else 0.0
        return 0 < left_s <= LONGEST_LEASE_S

    def in_force(self) -> dict[str, int]:
        """Percent by server, for servers with a share."""
        split = self.split
        if split is None or split.closed_s or not self.proxy_up:
            return {}
        if split.leased is None or self.lease_holds():
            return {name: weight for name, weight in split.weights.items() if weight}
        staying = {n: w for n, w in split.weights.items() if w and n != split.leased}
        return staying or {split.fallback: PERCENT}

    def load_adapter(self, server: str, name: str) -> None:
        """A client loads an adapter through the proxy."""
        self.servers[server].adapters.add(name)

    def loaded_adapters(self) -> set[str]:
        """The adapters that any server has."""
        return {name for process in self.servers.values() for name in process.adapters}

    def serving(self) -> list[str]:
        """Servers with a share that answer usefully."""
        return [n for n in self.in_force() if self.answers(n) and self.errors_of(self.servers[n]) < BAD]

    def errors_of(self, process: Process) -> float:
        """The share of its requests that fail."""
        return max(process.errors, self.boot_of(process).errors) if self.errs else process.errors

    def answers(self, name: str) -> bool:
        process = self.servers.get(name)
        return process is not None and process.answers

    def tell_proxy(self, split: Split, lease_s: float) -> None:
        split.expires_wall_s = self.wall_s + lease_s
        former, self.told_s = self.in_force(), self.at_s
        self.split, self.proxy_up = split, True
        for _ in range(self.rate if self.has_late_threads else 0):
            late_s = self.lateness.uniform(0.0, SETTLES_S)
            self.loop.outside(late_s, partial(self._arrive_late, former))
        self.note_shares()
        self.changed("split", "", split.epoch)

    def is_settled(self) -> bool:
        """Whether each thread of the proxy works by the last split."""
        return not self.has_late_threads or self.at_s - self.told_s >= SETTLES_S

    def note_shares(self) -> None:
        shares = self.in_force()
        for name in self.servers:
            if name in shares:
                self.weightless_s.pop(name, None)
            else:
                self.weightless_s.setdefault(name, self.at_s)

    # Clients.

    def second(self) -> None:
        """End due requests and accept new ones."""
        self.settle()
        self.note_shares()
        shares = self.in_force()
        for _ in range(self.rate):
            if self.proxy_up and (self.split is None or self.split.closed_s):
                self.ledger.turned_away += 1
            elif shares:
                self.accept(self.pick(shares))

    def _arrive_late(self, former: Mapping[str, int]) -> None:
        """A request that a late thread of the proxy sends by the split before."""
        able = {name: share for name, share in former.items() if self.answers(name)}
        if self.proxy_up and able:
            self.accept(self.lateness.choices(list(able), list(able.values()))[0])

    def pick(self, shares: Mapping[str, int]) -> str:
        names = list(shares)
        name = self.random.choices(names, list(shares.values()))[0] if len(names) > 1 else names[0]
        if self.answers(name):
            return name
        process = self.servers.get(name)
        if process is not None and process.status == "hung":
            return name
        others = [other for other in shares if other != name and self.answers(other)]
        if others:  # no connection: the proxy retries another server and logs the attempt
            self.log(Client(id=-1, server=name, began_s=self.at_s, outcome="failed", status=0))
            return others[0]
        return name

    def accept(self, name: str) -> None:
        self.ledger.accepted += 1
        process = self.servers.get(name)
        client = Client(id=next(self._ids), server=name, began_s=self.at_s, outcome="ok", status=200)
        if process is None or process.status not in {"healthy", "wedged", "hung"}:
            client.outcome, client.status = "failed", 0
            self.end(client)
            return
        draw = self.random.random()
        lasts_s = 0.3 + draw if draw < 0.85 else 40.0 * (draw - 0.8)
        if process.status != "healthy":
            client.outcome, client.status, lasts_s = "gave_up", 0, GIVES_UP_S
        elif self.random.random() < self.errors_of(process):
            client.outcome, client.status, lasts_s = "failed", 500, 0.1
        self.open_of.setdefault(name, {})[client.id] = client
        heappush(self._due, (self.at_s + lasts_s, client.id, client))

    def settle(self) -> None:
        while self._due and self._due[0][0] <= self.at_s:
            client = heappop(self._due)[2]
            if not client.ended:
                del self.open_of[client.server][client.id]
                self.end(client)

    def end(self, client: Client) -> None:
        client.ended = True
        if client.outcome == "ok":
            self.ledger.answered += 1
        elif client.outcome == "cut":
            self.ledger.cut += 1
            client.outcome = "failed"
        else:
            self.ledger.failed += 1
        self.log(client)

    def log(self, client: Client) -> None:
        client.ended_s = self.at_s
        self.records.append(client)

    def open_at(self, name: str) -> int:
        self.settle()
        return len(self.open_of.get(name, {}))

    def still_open(self) -> int:
        return sum(len(clients) for clients in self.open_of.values())

    def _end_open(self, name: str, outcome: str) -> int:
        self.settle()
        clients = self.open_of.pop(name, {})
        for client in clients.values():
            client.outcome, client.status = outcome, 0
            self.end(client)
        return len(clients)

    # Servers.

    def adopt(self, name: str, setting: dict[str, object], *, ours: bool, epoch: int = 0) -> Process:
        """Add a running server."""
        address = f"127.0.0.1:{next(self._ports)}"
        process = Process(name=name, setting=setting, address=address, ours=ours, epoch=epoch)
        self.servers[name] = process
        self._become(process, "healthy")
        return process

    def start(self, name: str, setting: dict[str, object], like: str, epoch: int) -> None:
        """Start the server unless it runs."""
        if name in self.servers:
            return
        again = self.stopped.pop(name, None)
        process = again or Process(
            name=name,
            setting=setting,
            address=f"127.0.0.1:{next(self._ports)}",
            ours=True,
            like=like,
            epoch=epoch,
        )
        self.servers[name] = process
        self._become(process, "starting")
        boot = self.boot_of(process)
        wakes = again is not None and again.asleep == "wakes"
        takes_s = WAKES_S if wakes else boot.takes_s
        if not wakes:
            process.adapters.clear()
        process.asleep = ""
        self.loop.outside(self.random.uniform(*takes_s), lambda: self._booted(process, boot))
        self.changed("launch", name, epoch)

    def _booted(self, process: Process, boot: Boot) -> None:
        if self.servers.get(process.name) is not process or process.status != "starting":
            return
        if boot.fails:
            self.set_status(process.name, "exited")
            return
        self._become(process, "healthy")
        if boot.becomes and not self.quiet:
            self.loop.outside(boot.turns_s, lambda: self._turn(process, boot.becomes))

    def _turn(self, process: Process, status: str) -> None:
        if self.servers.get(process.name) is process and process.status == "healthy" and not self.quiet:
            self.set_status(process.name, status)

    def set_status(self, name: str, status: str) -> None:
        """Let the server exit, hang, wedge or recover."""
        process = self.servers.get(name)
        if process is None:
            return
        if status == "exited":
            del self.servers[name]
            self._end_open(name, "failed")
        self._become(process, status)
        self.changed(status, name, 0)

    def finish(self, name: str, epoch: int, *, keep: bool) -> None:
        """Stop the server and cut its open requests."""
        stopped = self.stopped.pop(name, None)
        process = self.servers.pop(name, None)
        if process is not None and keep and self.sleeps and process.answers and not self.open_at(name):
            process.asleep = "wakes"
        elif stopped is not None and not keep:
            stopped.asleep = ""
        if process is not None:
            cut = self._end_open(name, "cut" if epoch and process.status != "hung" else "failed")
            self.cut_open(process, cut, epoch)
            self._become(process, "exited")
        if keep and (process or stopped):
            ended = process or stopped
            assert ended is not None
            self.stopped[name] = ended
        self.changed("stop" if keep else "retire", name, epoch)

    def fail_asleep(self, why: str) -> bool:
        """A sleeping server fails; False without one."""
        asleep = [process for process in self.stopped.values() if process.asleep]
        for process in asleep:
            process.asleep = why
        return bool(asleep)

    def find_failed_wake(self, name: str) -> str:
        """Why this server cannot be woken; it is an ordinary stopped one from then on."""
        process = self.stopped.get(name)
        if process is None or process.asleep in {"", "wakes"}:
            return ""
        why, process.asleep = process.asleep, ""
        return why

    def _become(self, process: Process, status: str) -> None:
        process.status, process.since_s = status, self.at_s
        if status == "exited":
            self.hot.knobs.pop(process.name, None)
        elif self.has_hot_knobs and process.name not in self.hot.knobs:
            self.hot.knobs[process.name] = knobs_of(process.setting, lambda: self.at_s, SLOTS)
        for waiting in self._waiting.pop(process.name, ()):
            if not waiting.done():
                waiting.set_result(None)

    def set_knobs(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None
    ) -> None:
        """Raises ActError where the control endpoint would refuse it."""
        if server.name not in self.servers:
            raise ActError(f"{server.name} does not answer")
        self.hot.set(server, values, number, lease_s)
        self.changed("set_knobs", server.name, number[0])

    def cap_of(self, process: Process) -> object:
        """The value in force of what histories change."""
        knobs = self.hot.knobs.get(process.name) if self.has_hot_knobs else None
        shown = knobs.show()["in_force"] if knobs is not None else process.setting
        assert isinstance(shown, dict)
        return shown.get("max_num_seqs")

    def caps_of(self, process: Process) -> set[object]:
        """The values in force, of which one process has one."""
        return {self.cap_of(process)}

    async def change_of(self, name: str) -> None:
        waiting = self.loop.create_future()
        self._waiting.setdefault(name, []).append(waiting)
        await waiting

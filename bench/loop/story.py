"""One run of a world in virtual time: the daemon as wiring builds it, servers, clients and an operator."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time

import structlog

from bench.loop.clients import Clients
from bench.loop.config import config_text
from bench.loop.engine import VirtualEngine
from bench.loop.learner import VirtualLearner
from bench.loop.run import Rolled, Run, Said
from bench.loop.site import VirtualSite
from bench.loop.static import LATE_S
from bench.loop.world import World, WorldError
from flettner.agent.audit.history import History
from flettner.agent.audit.journal import Journal
from flettner.agent.config.loader import parse_config
from flettner.agent.domain import events as e
from flettner.agent.domain.ports import Site
from flettner.agent.domain.state import Phase, State
from flettner.agent.prediction.worker import InlineWorker
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.model_search import ModelSearch
from flettner.agent.runtime.wiring import build_loop, build_rules
from flettner.vllm_facts.values import Setting
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_no_time, loop_now

TARGET = "w"
SETTLED_S = 2.0  # from the first server to the begin of the load
LOOK_S = 1.0  # of the operator
MEMORY = Path("/dev/shm")  # noqa: S108 - a journal that outlives no run


@dataclass(slots=True, kw_only=True)
class _Books:
    """What happened, in seconds of the loop's clock."""

    history: History = field(default_factory=History)
    seen: dict[str, float] = field(default_factory=dict)  # suggestions
    in_force: dict[str, Setting] = field(default_factory=dict)
    approved: dict[str, float] = field(default_factory=dict)
    rolling: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)  # by server and its settings so far
    labels: dict[str, str] = field(default_factory=dict)  # by server: the key of its present setting
    results: dict[str, str] = field(default_factory=dict)  # of rollouts
    shares: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)

    def add(self, state: State) -> None:
        """Take each recorded state."""
        now_s = asyncio.get_running_loop().time()
        self.history.add_state(state)
        for one in self.history.suggestions():
            if one.id not in self.seen and one.status != "checking":
                self.seen[one.id] = now_s
                self.in_force[one.id] = dict(state.blue.setting) if state.blue else {}
        for server in state.present:
            self._add_setting(server.name, server.setting)
        rollout = state.rollout
        if rollout is not None:
            began_s, shared_s, ended_s = self.rolling.get(rollout.id, (now_s, None, None))
            if state.phase is Phase.CANARY and rollout.step_since is not None and shared_s is None:
                shared_s = now_s
            if rollout.outcome != "running" and ended_s is None:
                ended_s = now_s
                self.results[rollout.id] = state.outcomes[-1].result if state.outcomes else rollout.outcome
            self.rolling[rollout.id] = (began_s, shared_s, ended_s)
        note = f"{state.phase.value}: {state.note}"
        if not self.notes or self.notes[-1][1] != note:
            self.notes.append((now_s, note))

    def _add_setting(self, server: str, setting: Setting) -> None:
        """A server whose limits change while it runs is another one for the score."""
        label = self.labels.setdefault(server, server)
        if not self.settings.get(label):
            self.settings[label] = dict(setting)
        elif self.settings[label] != setting:
            self.labels[server] = label = f"{server} {len(self.settings)}"
            self.settings[label] = dict(setting)


def play(world: World, seed: int) -> Run:
    """Run the world once. The same world and seed give the same run."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with tempfile.TemporaryDirectory(prefix="loop-", dir=MEMORY if MEMORY.is_dir() else None) as home:
            return in_no_time(_play(world, seed, Path(home)))
    finally:
        structlog.configure(**before)


async def _play(world: World, seed: int, home: Path) -> Run:
    began_cpu_s, clock = process_time(), asyncio.get_running_loop().time
    made = parse_config(config_text(world, TARGET), here=home)
    (target,) = made.targets
    site = Site(target=TARGET, state_dir=home, epoch=1)
    engine, traffic, books = VirtualEngine(world, seed), FakeTraffic().bind(site), _Books()
    virtual = VirtualSite(engine=engine, traffic=traffic)
    journal = Journal.open(home / "audit.jsonl", now=loop_now, sync=lambda _: None, limits=made.audit)
    learner = VirtualLearner(world=world, seed=seed, site=virtual, engine=engine)
    loop = build_loop(
        build_rules(made, target),
        State(target=TARGET),
        mode=world.mode,
        journal=journal,
        engine=engine.bind(site),
        traffic=traffic,
        sensors=(virtual,),
        state_dir=home,
        now=loop_now,
        on_state=books.add,
        model_search=ModelSearch(
            worker=InlineWorker(),
            learned=learner.learned,
            slo=target.slo,
            bounds=target.bounds,
            now=loop_now,
        )
        if world.model != "off"
        else None,
    )
    daemon = asyncio.create_task(loop.run(1, lambda: None))
    tasks = [
        daemon,
        asyncio.create_task(virtual.live(loop_now)),
        asyncio.create_task(_watch_shares(traffic, books)),
    ]
    try:
        await _until(lambda: _is_ready(loop.state), tasks)
        await asyncio.sleep(SETTLED_S)
        began_s = clock()
        virtual.clients = Clients(world, seed, since_s=began_s)
        tasks.append(asyncio.create_task(_operate(world, loop, books)))
        await _until(lambda: clock() >= began_s + world.seconds, tasks)
        await _until(
            lambda: len(virtual.ended) == virtual.sent or clock() > began_s + world.seconds + LATE_S, tasks
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        journal.close()
    return _told(world, seed, books, virtual, began_s, process_time() - began_cpu_s)


def _is_ready(state: State) -> bool:
    """Whether the server answers. Raises WorldError if vLLM refuses the flags of the world."""
    if state.phase is Phase.HALTED:
        raise WorldError(f"the server of the world does not start: {state.note}")
    return state.phase is Phase.OBSERVING and bool(state.up)


async def _until(holds: Callable[[], bool], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait; raise what ended a task, as without operator or clients the figures would be wrong."""
    while not holds():
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(1.0)


async def _operate(world: World, loop: TargetLoop, books: _Books) -> None:
    """Approve the first open suggestion, as it is then, `think_s` after it was seen; not in auto mode."""
    clock = asyncio.get_running_loop().time
    seen: dict[str, float] = {}
    while world.mode == "approve":
        await asyncio.sleep(LOOK_S)
        for open_one in loop.state.open_suggestions:
            seen.setdefault(open_one.id, clock())
        one = next(iter(loop.state.open_suggestions), None)
        if one is None or clock() < seen[one.id] + world.think_s:
            continue
        with suppress(TimeoutError):
            await loop.submit(
                e.Approved(at=loop_now(), actor="operator", suggestion=one.id, digest=one.digest)
            )
        books.approved.setdefault(one.id, clock())


async def _watch_shares(traffic: FakeTraffic, books: _Books) -> None:
    while True:
        weights = {books.labels.get(name, name): weight for name, weight in traffic.weights_in_force.items()}
        if not books.shares or books.shares[-1][1] != weights:
            books.shares.append((asyncio.get_running_loop().time(), weights))
        await asyncio.sleep(1.0)


def _told(world: World, seed: int, books: _Books, virtual: VirtualSite, began_s: float, cpu_s: float) -> Run:
    suggestions = {one.id: one for one in reversed(books.history.suggestions())}
    said = tuple(
        Said(
            id=one.id,
            rule=one.proposal.rule,
            klass=one.proposal.klass,
            at_s=round(books.seen[one.id] - began_s, 1),
            before=dict(one.before),
            to=dict(one.proposal.to),
            in_force=books.in_force[one.id],
            why=one.proposal.why,
            approved_s=_since(began_s, books.approved.get(one.id)),
            status=one.status,
        )
        for one in suggestions.values()
        if one.id in books.seen
    )
    rolled = []
    for _, rollout in reversed(books.history.rollouts()):
        started_s, shared_s, ended_s = books.rolling[rollout.id]
        one = suggestions.get(rollout.suggestion)
        forecast = one.forecast if one else None
        rolled.append(
            Rolled(
                id=rollout.id,
                suggestion=rollout.suggestion,
                to=dict(one.proposal.to) if one else {},
                began_s=round(started_s - began_s, 1),
                ended_s=_since(began_s, ended_s),
                outcome=books.results.get(rollout.id, "running"),
                why=rollout.why,
                exposed=rollout.exposed.asked,
                bad=rollout.bad_exposed,
                forecast_s=(forecast.usual_s + forecast.hold_s, forecast.likely_s + forecast.hold_s)
                if forecast
                else None,
                canary_s=None if shared_s is None or ended_s is None else round(ended_s - shared_s, 1),
            )
        )
    return Run(
        world=world.name,
        seed=seed,
        said=said,
        rolled=tuple(rolled),
        shares=tuple((round(at_s - began_s, 1), weights) for at_s, weights in books.shares),
        settings=books.settings,
        ended=tuple(
            replace(one, arrived_s=one.arrived_s - began_s, ended_s=one.ended_s - began_s)
            for one in virtual.ended
        ),
        sent=virtual.sent,
        notes=tuple((round(at_s - began_s, 1), note) for at_s, note in books.notes),
        cpu_s=round(cpu_s, 1),
    )


def _since(began_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s - began_s, 1)

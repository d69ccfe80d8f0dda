"""One run of a world in virtual time: the daemon as wiring builds it, servers, clients and an operator."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import process_time

import structlog

from bench.loop.clients import Clients
from bench.loop.config import config_text
from bench.loop.engine import VirtualEngine
from bench.loop.learner import VirtualLearner
from bench.loop.run import Books, Run
from bench.loop.site import LoopSite
from bench.loop.static import LATE_S
from bench.loop.world import World, WorldError
from flettner.agent.config.loader import parse_config
from flettner.agent.domain import events as e
from flettner.agent.domain.headroom import HOUR_S
from flettner.agent.domain.ports import Site
from flettner.agent.domain.state import Phase, State
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.prediction.worker import InlineWorker
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.model_search import ModelSearch
from flettner.agent.runtime.peak_hours import PeakHours
from flettner.agent.runtime.time_series import TimeSeries
from flettner.agent.runtime.wiring import build_rules
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_no_time, loop_now
from tests.support.running_loop import start_loop

TARGET = "w"
SETTLED_S = 2.0  # from the first server to the begin of the load
LOOK_S = 1.0  # of the operator
MEMORY = Path("/dev/shm")  # noqa: S108 - a journal that outlives no run


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
    config = parse_config(config_text(world, TARGET), here=home)
    (target,) = config.targets
    engine, traffic, books = VirtualEngine(world, seed), FakeTraffic(), Books()
    bound = traffic.bind(Site(target=TARGET, state_dir=home, epoch=1))
    site = LoopSite(engine=engine, traffic=bound)
    learner = VirtualLearner(world=world, seed=seed, site=site, engine=engine)
    peaks = known_peaks(world, loop_now().timestamp())
    search = ModelSearch(
        worker=InlineWorker(), learned=learner.learned, slo=target.slo, bounds=target.bounds, now=loop_now
    )
    daemon = start_loop(
        build_rules(config, target),
        home=home,
        engine=engine,
        traffic=traffic,
        target=TARGET,
        mode=world.mode,
        sync=lambda _: None,
        limits=config.audit,
        sensors=(site,),
        on_state=lambda state: books.add_state(state, clock()),
        model_search=search if world.model != "off" or world.servers > 1 else None,
        series=TimeSeries(peaks=peaks),
    )
    tasks = [
        daemon.task,
        asyncio.create_task(site.live(loop_now)),
        asyncio.create_task(_watch_shares(bound, books)),
    ]
    try:
        await _until(lambda: _is_ready(daemon.loop.state), tasks)
        await asyncio.sleep(SETTLED_S)
        began_s = clock()
        site.clients = Clients(world, seed, since_s=began_s)
        tasks.append(asyncio.create_task(_operate(world, daemon.loop, books)))
        ends_s = began_s + world.seconds
        await _until(lambda: clock() >= ends_s, tasks)
        await _until(lambda: len(site.ended) == len(site.sent) or clock() > ends_s + LATE_S, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        daemon.journal.close()
    cpu_s = process_time() - began_cpu_s
    return books.close(world, seed, began_s=began_s, ended=site.ended, sent=len(site.sent), cpu_s=cpu_s)


def known_peaks(world: World, unix_s: float) -> PeakHours:
    """Return the hours of the week before, each with the busiest and the fullest minute of all."""
    peaks, hour = PeakHours(), int(unix_s) // HOUR_S * HOUR_S
    if world.peak_rps is not None:
        for ago in range(world.history_h, 0, -1):
            at = hour - ago * HOUR_S
            peaks.add(MinuteRow(at=at, requests_rps=world.peak_rps), world.peak_kv)
    return peaks


def _is_ready(state: State) -> bool:
    """Return whether the server answers. Raises WorldError if vLLM refuses the flags of the world."""
    if state.phase is Phase.HALTED:
        raise WorldError(f"the server of the world does not start: {state.note}")
    return state.phase is Phase.OBSERVING and bool(state.reachable)


async def _until(holds: Callable[[], bool], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait; raise what ended a task, as without operator or clients the figures would be wrong."""
    while not holds():
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(1.0)


async def _operate(world: World, loop: TargetLoop, books: Books) -> None:
    """Approve the first open suggestion, as it is then, `think_s` after it was seen; not in auto mode."""
    clock = asyncio.get_running_loop().time
    seen: dict[str, float] = {}
    while world.mode == "approve":
        await asyncio.sleep(LOOK_S)
        for suggestion in loop.state.suggestions.open:
            seen.setdefault(suggestion.id, clock())
        first = next(iter(loop.state.suggestions.open), None)
        if first is None or clock() < seen[first.id] + world.think_s:
            continue
        with suppress(TimeoutError):
            await loop.submit(
                e.Approved(at=loop_now(), actor="operator", suggestion=first.id, digest=first.digest)
            )
        books.approved.setdefault(first.id, clock())


async def _watch_shares(traffic: FakeTraffic, books: Books) -> None:
    while True:
        books.add_shares(traffic.weights_in_force, asyncio.get_running_loop().time())
        await asyncio.sleep(1.0)

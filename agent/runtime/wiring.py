"""Builds the daemon from a config: the only place that passes actuators, sensors and policies to the core."""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from flettner.agent.api.app import build_app
from flettner.agent.api.credentials import ApiCredentials
from flettner.agent.api.health import HealthProbes
from flettner.agent.api.routes.console import pages
from flettner.agent.api.server import serve
from flettner.agent.audit import checkpoints
from flettner.agent.audit.history import History
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.config.loader import Config, Target
from flettner.agent.config.notify import Receiver
from flettner.agent.domain.errors import ActError, ConfigError, NoticeError
from flettner.agent.domain.model import Approvers, Mode
from flettner.agent.domain.ports import Engine, Now, Sensor, Site, Traffic
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.domain.state import State
from flettner.agent.judge.canary.admissibility import UNEVEN, UNEVEN_UNSEEN
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.hot_knobs import HOT_FIRST
from flettner.agent.machine.step import Machine
from flettner.agent.machine.transitions import Rules
from flettner.agent.notify.delivery import NoticeDelivery
from flettner.agent.observe.aggregator import Aggregator
from flettner.agent.prediction.worker import Worker, WorkerProcess
from flettner.agent.retrying import ReasonLog, retry, stop_before
from flettner.agent.runtime.anchor_schedule import AnchorSchedule
from flettner.agent.runtime.api_check import find_api_problems
from flettner.agent.runtime.command_check import CommandCheck
from flettner.agent.runtime.daemon import Daemon, utc_now
from flettner.agent.runtime.learner import Learner
from flettner.agent.runtime.lock import find_lock_problems, hold_engine_locks, hold_lock
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.model_file import ModelFile
from flettner.agent.runtime.model_search import ModelSearch
from flettner.agent.runtime.time_series import HistorySource, TimeSeries
from flettner.primitives.address import UnixSocket

COLLECT_AFTER = 50_000  # new objects, some MiB; Python's default: 700
log = structlog.get_logger()

OBSERVE_RETRY_S = 2.0  # before the start, while engine or proxy does not answer
CHECK_S = 30.0
"""Seconds to wait for a proxy that cannot say whether it works: a program that it asks may refuse everything
for some seconds after its own start."""

_T = TypeVar("_T")


def bind_actuators(
    config: Config, target: Target, epoch: int, *, acts: bool = True
) -> tuple[Engine, Traffic]:
    """Bind the target's engine and traffic to their site, its own directory below the state directory."""
    site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=epoch, acts=acts)
    engine: Engine = target.engine.plugin.bind(site)
    traffic: Traffic = target.traffic.plugin.bind(site)
    return engine, traffic


def build_rules(config: Config, target: Target) -> Rules:
    guard = Guard(
        bounds=target.bounds,
        cooldown_s=target.cooldown_s,
        suggestion_ttl_s=target.suggestion_ttl_s,
        changes_per_day=target.changes_per_day,
        hot_changes_per_day=target.hot_changes_per_day,
        hot=target.strategy in HOT_FIRST,
        hold=target.traffic.plugin.hold,
    )
    policies = tuple((policy.name, policy.plugin) for policy in config.policies)
    by_engine = find_request_source(target, target.traffic.plugin) == "engine"
    return Rules(
        plan=target.plan,
        judge=AnytimeJudge(uneven=UNEVEN_UNSEEN if by_engine else UNEVEN),
        slo=target.slo,
        guard=guard,
        policies=policies,
        strategy=target.strategy,
        restart_after_s=target.restart_after_s,
        exam=target.quality,
    )


def build_loop(
    rules: Rules,
    recorded: State,
    *,
    mode: Mode,
    journal: Journal,
    engine: Engine,
    traffic: Traffic,
    sensors: Sequence[Sensor],
    state_dir: Path,
    now: Now,
    approval: Approvers = "any",
    counted_by: RequestSource = "proxy",
    aggregator: Aggregator | None = None,
    on_state: Callable[[State], None] = lambda _: None,
    series: TimeSeries | None = None,
    history: HistorySource | None = None,
    check: CommandCheck | None = None,
    learner: Learner | None = None,
    model_search: ModelSearch | None = None,
    offset_s: float = 0.0,
) -> TargetLoop:
    """Assemble the loop of one target, which goes on from its `recorded` state.

    `engine` and `traffic` are bound to the target's site. The other options are those of TargetLoop;
    `aggregator` replaces the one that the objectives and `counted_by` ask for.
    """
    return TargetLoop(
        state=replace(recorded, mode=mode, approval=approval),
        machine=Machine(rules),
        journal=journal,
        engine=engine,
        traffic=traffic,
        sensors=sensors,
        state_dir=state_dir,
        now=now,
        on_state=on_state,
        series=series or TimeSeries(),
        history=history,
        aggregator=aggregator or Aggregator(slo=rules.slo, counted_by=counted_by),
        check=check,
        learner=learner,
        model_search=model_search,
        offset_s=offset_s,
    )


@contextmanager
def assemble(
    config: Config, mode: Mode, above: int, *, accept_new_journal: bool = False
) -> Iterator[tuple[Daemon, int]]:
    """Build the daemon and its epoch, larger than `above`, holding the lock and the open journal.

    Raises JournalError if another daemon uses the state directory, or the journal was changed or removed.
    """
    with hold_lock(config.state_dir):
        journal = _open_journal(config, above, accept_new_journal=accept_new_journal)
        epoch, history, states = max(journal.epoch(), above) + 1, History.of(journal), journal.states()
        for name in find_removed(config, states):
            log.warning("target.removed", target=name, why="not in the config; its servers and proxy go on")
        loops, worker = {}, WorkerProcess()
        for number, target in enumerate(config.targets):
            directory = config.state_dir / target.name
            directory.mkdir(mode=0o700, exist_ok=True)
            engine, traffic = bind_actuators(config, target, epoch, acts=mode != "advise")
            learner = build_learner(worker, engine, directory) if config.learn else None
            loops[target.name] = build_loop(
                build_rules(config, target),
                states.get(target.name, State(target=target.name)),
                mode=mode,
                approval=config.approval,
                journal=journal,
                engine=engine,
                traffic=traffic,
                sensors=tuple(sensor.plugin for sensor in target.sensors),
                state_dir=directory,
                now=utc_now,
                on_state=history.add_state,
                series=TimeSeries.load(directory / "series.jsonl"),
                history=find_history_source(target),
                counted_by=find_request_source(target, traffic),
                check=CommandCheck(),
                learner=learner,
                model_search=build_model_search(config, target, learner) if learner is not None else None,
                offset_s=number / len(config.targets),
            )
        anchors = AnchorSchedule(head=lambda: journal.head, options=config.anchor)
        daemon = Daemon(
            loops=loops,
            journal=journal,
            history=history,
            deliveries=tuple(
                build_delivery(config, receiver, journal, loops, anchors) for receiver in config.notify
            ),
            anchors=anchors,
            worker=worker,
        )
        try:
            yield daemon, epoch
        finally:
            journal.close()


def _open_journal(config: Config, above: int, *, accept_new_journal: bool) -> Journal:
    signer = checkpoints.find_signer(config.state_dir)
    path = config.state_dir / "audit.jsonl"
    journal = Journal.open(
        path, now=utc_now, limits=config.audit, signer=signer, accept=accept_new_journal, epoch=above
    )
    log.info("audit.opened", **journal.head.log_fields(), signed_by=signer.id if signer else None)
    if not journal.head.seq and (left := find_traces(config)):
        _report_missing_journal(journal, left)
    return journal


def find_traces(config: Config) -> list[str]:
    """What an earlier daemon left in the state directory: the folders of targets and of notices."""
    names = {*(target.name for target in config.targets), "envoy", "notify"}
    return sorted(name for name in names if (config.state_dir / name).is_dir())


def _report_missing_journal(journal: Journal, left: Sequence[str]) -> None:
    """Say it in the log and in the first entry: without file, mark and key there is nothing to refuse by."""
    why = (
        f"there is no journal, but {', '.join(left)} of an earlier daemon: the journal was removed, with its "
        f"mark and its key, or the state directory was copied without it; earlier decisions are not known"
    )
    log.error("audit.missing", why=why)
    journal.append(JournalEntry(at=utc_now(), actor=DAEMON, action="audit.missing", why=why))


def find_request_source(target: Target, traffic: Traffic) -> RequestSource:
    """A sensor may count the requests of a proxy that counts none."""
    default: RequestSource = "proxy" if traffic.counts_requests else "engine"
    sources = (getattr(sensor.plugin, "request_source", None) for sensor in target.sensors)
    return next(filter(None, sources), default)


def find_history_source(target: Target) -> HistorySource | None:
    plugins = (sensor.plugin for sensor in target.sensors)
    return next((plugin for plugin in plugins if isinstance(plugin, HistorySource)), None)


def build_learner(worker: Worker, engine: Engine, directory: Path) -> Learner:
    file = ModelFile(path=directory / "model.json", now=utc_now)
    return Learner(worker=worker, engine=engine, now=utc_now, file=file)


def build_model_search(config: Config, target: Target, learner: Learner) -> ModelSearch:
    return ModelSearch(
        worker=learner.worker,
        learned=lambda: learner.model,
        slo=target.slo,
        bounds=target.bounds,
        now=utc_now,
        searches=any(getattr(policy.plugin, "uses_model_search", False) for policy in config.policies),
    )


def find_removed(config: Config, states: Mapping[str, State]) -> list[str]:
    """Targets with a proxy and a directory that the config no longer has."""
    left = {
        name for name, state in states.items() if state.split.route and (config.state_dir / name).is_dir()
    }
    return sorted(left - {target.name for target in config.targets})


async def run(config: Config, mode: Mode, *, accept_new_journal: bool = False) -> None:
    """Run the daemon until a signal ends it, after checking what every rollout needs."""
    health = HealthProbes()
    entry = ApiCredentials.of(config.api, utc_now)
    end_on_signals()
    async with AsyncExitStack() as held:
        await held.enter_async_context(health.listening(config.api.health))
        if mode != "advise":
            await check_traffic(config)
            await held.enter_async_context(hold_engine_locks(config, utc_now))
        above = await read_newest_epoch(config)
        with assemble(config, mode, above, accept_new_journal=accept_new_journal) as (daemon, epoch):
            health.daemon = daemon
            api = [str(listener) for listener in config.api.listen]
            log.info("daemon.starting", mode=mode, epoch=epoch, targets=len(daemon.loops), api=api)
            await _serve(daemon, epoch, config, entry)


def end_on_signals() -> None:
    """Until the daemon runs; the main process of a container would ignore them."""
    starting = asyncio.current_task()
    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, lambda: starting and starting.cancel())


async def _serve(daemon: Daemon, epoch: int, config: Config, entry: ApiCredentials) -> None:
    authenticators = {authenticator.name: authenticator.plugin for authenticator in config.authenticators}
    app = build_app(
        daemon, entry.tokens, entry.hosts, pages(), peers=entry.peers, authenticators=authenticators
    )
    runner = await serve(app, *config.api.listen, tls=entry.tls, socket_mode=entry.socket_mode)
    collect_seldom()
    try:
        await daemon.run(epoch, ready=lambda: log.info("daemon.ready"), reload=entry.reload)
    finally:
        await runner.cleanup()
        log.info("daemon.stopped", **daemon.journal.head.log_fields())


def collect_seldom() -> None:
    """Leave the objects of the start out of garbage collections, and collect after more new objects.

    The windows of many targets keep objects for minutes, without cycles: with Python's thresholds collections
    took 18 % of the CPU of 50 targets (bench.capacity.replicas), the largest 0.1 s each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)


def build_delivery(
    config: Config,
    receiver: Receiver,
    journal: Journal | None,
    loops: Mapping[str, TargetLoop],
    anchors: AnchorSchedule | None = None,
) -> NoticeDelivery:
    """Build the delivery of notices to the receiver; without a journal it can only send test messages."""
    return NoticeDelivery(
        name=receiver.name,
        notifier=receiver.plugin,
        min_severity=receiver.severity,
        file=config.state_dir / "notify" / f"{receiver.name}.json",
        console=config.public_url,
        now=utc_now,
        follow=journal.subscribe if journal else None,
        head=journal.head.seq if journal else 0,
        states=lambda: {name: loop.state for name, loop in loops.items()},
        writable=lambda: all(loop.writable for loop in loops.values()),
        full=lambda: journal is not None and journal.full,
        anchor=lambda: anchors.for_receiver(receiver.name) if anchors else None,
    )


async def read_newest_epoch(config: Config) -> int:
    """Return the newest epoch that proxies and servers carry, which a new journal does not contain."""
    epochs = [0]
    for target in config.targets:
        engine, traffic = bind_actuators(config, target, epoch=0)
        epochs.append(await _wait_for(target.name, engine.newest_epoch))
        seen = await _wait_for(target.name, traffic.observe)
        epochs.append(seen.epoch if seen is not None else 0)
    return max(epochs)


async def _wait_for(target: str, ask: Callable[[], Awaitable[_T]], at_most_s: float = inf) -> _T:
    """Ask again while no answer comes. Raises ActError after `at_most_s`."""
    asking = AsyncRetrying(
        retry=retry_if_exception_type(ActError),
        wait=wait_fixed(OBSERVE_RETRY_S),
        stop=stop_before(at_most_s),
        before_sleep=ReasonLog("daemon.waiting", {"target": target}),
        reraise=True,
    )
    return await retry(asking, ask)


async def check_traffic(config: Config) -> None:
    """Raise ConfigError if every rollout would fail, as with a proxy that cannot split traffic."""
    for target in config.targets:
        _, traffic = bind_actuators(config, target, epoch=0)
        try:
            problems = await _wait_for(target.name, traffic.problems, CHECK_S)
        except ActError as error:
            problems = [error.why]
        if problems:
            raise ConfigError("\n".join(f"[targets.traffic] {target.name}: {what}" for what in problems))


async def find_problems(config: Config) -> list[str]:
    """List why this config cannot work on this host, one line each with its key; empty if it can."""
    problems = []
    try:
        ApiCredentials.of(config.api, utc_now)
    except ConfigError as error:
        problems.append(str(error))
    problems += find_api_problems(config, utc_now)
    for target in config.targets:
        engine, traffic = bind_actuators(config, target, epoch=0, acts=config.mode != "advise")
        of_engine, of_traffic = await asyncio.gather(engine.problems(), _list_problems(traffic))
        problems += [f"[targets.engine] {target.name}: {what}" for what in of_engine]
        problems += [f"[targets.traffic] {target.name}: {what}" for what in of_traffic]
    if config.mode != "advise":
        problems += await find_lock_problems(config)
    sockets = [listener for listener in config.api.listen if isinstance(listener, UnixSocket)]
    needed = [
        ("[agent] state_dir", config.state_dir),
        *(("[api] listen", listener.path.parent) for listener in sockets),
    ]
    for receiver in config.notify:
        try:
            build_delivery(config, receiver, None, {}).check()
        except NoticeError as error:
            problems.append(f"[[notify]] {receiver.name}: {error}")
    return problems + [why for why in (find_write_error(key, folder) for key, folder in needed) if why]


async def _list_problems(traffic: Traffic) -> Sequence[str]:
    try:
        return await traffic.problems()
    except ActError as error:
        return [error.why]


def find_write_error(key: str, folder: Path) -> str:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        probe = nearest / ".flettner-check"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"{key}: {nearest} is not writable: {error.strerror}; choose a directory that you own"
    return ""

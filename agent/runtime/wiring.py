"""Builds the daemon from a config: the only place that passes actuators, sensors and policies to the core."""

import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
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
from flettner.agent.domain.errors import ActError, ConfigError
from flettner.agent.domain.model import Approvers, Mode
from flettner.agent.domain.ports import Engine, Now, Sensor, Site, Traffic
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.domain.state import State
from flettner.agent.gitops.pull_requests import PullRequests
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
from flettner.agent.runtime.command_check import CommandCheck
from flettner.agent.runtime.config_reload import ConfigReload
from flettner.agent.runtime.daemon import Daemon, end_on_signals
from flettner.agent.runtime.learner import Learner
from flettner.agent.runtime.lock import hold_engine_locks, hold_lock
from flettner.agent.runtime.loop import NextRules, TargetLoop
from flettner.agent.runtime.model_file import ModelFile
from flettner.agent.runtime.model_search import ModelSearch
from flettner.agent.runtime.process_clock import ProcessClock
from flettner.agent.runtime.time_series import HistorySource, TimeSeries
from flettner.agent.runtime.trace_export import TraceExport, build_sender
from flettner.primitives.wall_clock import utc_now

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
        upgrades=target.upgrades,
    )
    by_engine = find_request_source(target, target.traffic.plugin) == "engine"
    return Rules(
        plan=target.plan,
        judge=AnytimeJudge(uneven=UNEVEN_UNSEEN if by_engine else UNEVEN),
        slo=target.slo,
        guard=guard,
        policies=tuple((policy.name, policy.plugin) for policy in config.policies),
        strategy=target.strategy,
        restart_after_s=target.restart_after_s,
        exam=target.quality,
        windows=target.windows,
        gpu_hour=target.gpu_hour,
        cards=target.cards,
        saves=target.saves,
        gpu=target.gpu,
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
    git: PullRequests | None = None,
    find_state: Callable[[str], State | None] = lambda _: None,
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
        git=git,
        find_state=find_state,
        offset_s=offset_s,
    )


def build_target_loop(
    config: Config,
    target: Target,
    recorded: State,
    *,
    mode: Mode,
    epoch: int,
    journal: Journal,
    on_state: Callable[[State], None],
    worker: Worker,
    now: Now,
    find_state: Callable[[str], State | None],
    offset_s: float,
) -> TargetLoop:
    """Assemble the loop of a configured target with its adapters."""
    directory = config.state_dir / target.name
    directory.mkdir(mode=0o700, exist_ok=True)
    engine, traffic = bind_actuators(config, target, epoch, acts=mode != "advise")
    learner = build_learner(worker, engine, directory, now, target.gpu) if config.learn else None
    rules = build_rules(config, target)
    series, requests = TimeSeries.load(directory / "series.jsonl"), directory / "pull_requests.json"
    return build_loop(
        rules,
        recorded,
        mode=mode,
        approval=config.approval,
        journal=journal,
        engine=engine,
        traffic=traffic,
        sensors=tuple(sensor.plugin for sensor in target.sensors),
        state_dir=directory,
        now=now,
        on_state=on_state,
        series=series,
        history=find_history_source(target),
        counted_by=find_request_source(target, traffic),
        check=CommandCheck(gpu=target.gpu, profile=target.profile),
        learner=learner,
        model_search=build_model_search(rules, learner) if learner is not None else None,
        git=PullRequests(target.git, requests, now, series.minutes) if target.git else None,
        find_state=find_state,
        offset_s=offset_s,
    )


@contextmanager
def assemble(
    config: Config,
    mode: Mode,
    above: int,
    *,
    accept_new_journal: bool = False,
    load: Callable[[], Config] | None = None,
) -> Iterator[tuple[Daemon, int]]:
    """Build the daemon and its epoch, larger than `above`, holding the lock and the open journal.

    `load` reads the config file again; None: it cannot be reloaded.

    Raises JournalError if another daemon uses the state directory, or the journal was changed or removed.
    """
    with hold_lock(config.state_dir):
        clock = ProcessClock()
        journal = _open_journal(config, above, clock, accept_new_journal=accept_new_journal)
        epoch, history, states = max(journal.epoch(), above) + 1, History.of(journal), journal.states()
        for name in find_removed(config, states):
            log.warning("target.removed", target=name, why="not in the config; its servers and proxy go on")
        worker = WorkerProcess()

        def find_state(name: str) -> State | None:
            return loops[name].state if name in loops else None

        loops = {
            target.name: build_target_loop(
                config,
                target,
                states.get(target.name, State(target=target.name)),
                mode=mode,
                epoch=epoch,
                journal=journal,
                now=clock.now,
                on_state=history.add_state,
                worker=worker,
                find_state=find_state,
                offset_s=number / len(config.targets),
            )
            for number, target in enumerate(config.targets)
        }
        anchors = AnchorSchedule(head=lambda: journal.head, options=config.anchor)
        deliver = partial(build_delivery, journal=journal, loops=loops, anchors=anchors)
        daemon = Daemon(
            loops=loops,
            journal=journal,
            history=history,
            deliveries=tuple(deliver(config, receiver) for receiver in config.notify),
            anchors=anchors,
            traces=build_traces(config, journal),
            worker=worker,
            config=build_reload(config, mode, load, journal, deliver, clock.now)
            if load is not None
            else None,
            time=clock,
        )
        try:
            yield daemon, epoch
        finally:
            journal.close()


def build_traces(config: Config, journal: Journal) -> TraceExport | None:
    """Raises ConfigError without the packages."""
    send = build_sender(config.otlp_endpoint) if config.otlp_endpoint else None
    return TraceExport(follow=journal.subscribe, head=journal.head.seq, send=send) if send else None


def build_reload(
    config: Config,
    mode: Mode,
    load: Callable[[], Config],
    journal: Journal,
    deliver: Callable[[Config, Receiver], NoticeDelivery],
    now: Now,
) -> ConfigReload:
    return ConfigReload(
        config=config,
        load=load,
        rules=partial(build_next_rules, mode),
        deliveries=partial(build_changed_deliveries, deliver),
        journal=journal,
        now=now,
    )


def build_next_rules(started: Mode, config: Config, actor: str) -> Mapping[str, NextRules]:
    """What the loops get of a reloaded config. A daemon that was started in advise mode stays in it."""
    mode = "advise" if started == "advise" else config.mode
    return {
        target.name: NextRules(
            rules=build_rules(config, target), mode=mode, approval=config.approval, actor=actor
        )
        for target in config.targets
    }


def build_changed_deliveries(
    build: Callable[[Config, Receiver], NoticeDelivery],
    before: Config,
    after: Config,
    running: Sequence[NoticeDelivery],
) -> tuple[NoticeDelivery, ...]:
    """Build the deliveries of changed receivers; keep the others, which go on."""
    same = before.notify if before.public_url == after.public_url else ()
    by_name = {delivery.name: delivery for delivery in running}
    return tuple(
        by_name[receiver.name] if receiver in same else build(after, receiver) for receiver in after.notify
    )


def _open_journal(config: Config, above: int, clock: ProcessClock, *, accept_new_journal: bool) -> Journal:
    signer = checkpoints.find_signer(config.state_dir)
    path = config.state_dir / "audit.jsonl"
    journal = Journal.open(
        path, now=clock.now, limits=config.audit, signer=signer, accept=accept_new_journal, epoch=above
    )
    for record in journal.after(journal.head.seq - 1, 1):
        clock.continue_after(datetime.fromisoformat(record["ts"]))
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


def build_learner(worker: Worker, engine: Engine, directory: Path, now: Now, gpu: str) -> Learner:
    file = ModelFile(path=directory / "model.json", now=now)
    return Learner(worker=worker, engine=engine, now=now, file=file, gpu=gpu)


def build_model_search(rules: Rules, learner: Learner) -> ModelSearch:
    search = ModelSearch(
        worker=learner.worker,
        learned=lambda: learner.model,
        now=learner.now,
    )
    search.use(rules)
    return search


def find_removed(config: Config, states: Mapping[str, State]) -> list[str]:
    """Targets with a proxy and a directory that the config no longer has."""
    left = {
        name for name, state in states.items() if state.split.route and (config.state_dir / name).is_dir()
    }
    return sorted(left - {target.name for target in config.targets})


async def run(
    config: Config,
    mode: Mode,
    *,
    accept_new_journal: bool = False,
    load: Callable[[], Config] | None = None,
) -> None:
    """Run the daemon until a signal ends it, after checking what every rollout needs.

    `load` reads the config file again.
    """
    health = HealthProbes()
    entry = ApiCredentials.of(config.api, utc_now)
    end_on_signals()
    async with AsyncExitStack() as held:
        await held.enter_async_context(health.listening(config.api.health))
        if mode != "advise":
            await check_traffic(config)
            await held.enter_async_context(hold_engine_locks(config, utc_now))
        above = await read_newest_epoch(config)
        with assemble(config, mode, above, accept_new_journal=accept_new_journal, load=load) as (
            daemon,
            epoch,
        ):
            health.daemon = daemon
            api = [str(listener) for listener in config.api.listen]
            log.info("daemon.starting", mode=mode, epoch=epoch, targets=len(daemon.loops), api=api)
            await _serve(daemon, epoch, config, entry)


async def _serve(daemon: Daemon, epoch: int, config: Config, entry: ApiCredentials) -> None:
    app = build_app(
        daemon,
        entry.tokens,
        entry.hosts,
        pages(),
        peers=entry.peers,
        authenticators={each.name: each.plugin for each in config.authenticators},
        public_url=config.public_url,
        trusted_proxies=config.api.trusted_proxies,
    )
    daemon.reload_credentials = entry.reload
    runner = await serve(app, *config.api.listen, tls=entry.tls, socket_mode=entry.socket_mode)
    collect_seldom()
    try:
        await daemon.run(epoch, ready=lambda: log.info("daemon.ready"))
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
        if (seen := await _wait_for(target.name, traffic.observe)) is not None:
            epochs.append(seen.epoch)
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

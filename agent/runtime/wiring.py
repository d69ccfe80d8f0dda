"""From a config to a running daemon: the one place that gives actuators, sensors and policies to the core."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from agent.api.app import build_app
from agent.api.credentials import ApiCredentials
from agent.api.routes.console import pages
from agent.api.server import serve
from agent.audit import checkpoints
from agent.audit.history import History
from agent.audit.journal import Journal
from agent.config.listen import UNIX
from agent.config.loader import Config, Target
from agent.config.notify import Receiver
from agent.domain.errors import ConfigError, NoticeError
from agent.domain.model import Mode
from agent.domain.ports import Engine, Site, Traffic
from agent.domain.state import State
from agent.judge.anytime import AnytimeJudge
from agent.machine.guard import Guard
from agent.machine.step import Machine
from agent.machine.transitions import Rules
from agent.notify.delivery import NoticeDelivery
from agent.observe.aggregator import Aggregator
from agent.observe.timeseries import TimeSeries
from agent.runtime.daemon import Daemon, utc_now
from agent.runtime.lock import held
from agent.runtime.loop import TargetLoop

log = structlog.get_logger()


def site_of(config: Config, target: Target, epoch: int) -> Site:
    """Each target has a directory of its own below the state directory."""
    return Site(target=target.name, state_dir=config.state_dir / target.name, epoch=epoch)


def actuators(config: Config, target: Target, epoch: int) -> tuple[Engine, Traffic]:
    """The target's engine and traffic, at their site."""
    site = site_of(config, target, epoch)
    engine: Engine = target.engine.plugin.bind(site)
    traffic: Traffic = target.traffic.plugin.bind(site)
    return engine, traffic


def rules_of(config: Config, target: Target) -> Rules:
    guard = Guard(
        bounds=target.bounds,
        cooldown_s=target.cooldown_s,
        suggestion_ttl_s=target.suggestion_ttl_s,
        changes_per_day=target.changes_per_day,
    )
    policies = tuple((part.name, part.plugin) for part in config.policies)
    return Rules(
        plan=target.plan,
        judge=AnytimeJudge(),
        slo=target.slo,
        guard=guard,
        policies=policies,
        strategy=target.strategy,
        exam=target.exam,
    )


@contextmanager
def assembled(config: Config, mode: Mode, above: int) -> Iterator[tuple[Daemon, int]]:
    """The daemon and its epoch, larger than `above`, with the lock held and the journal open.

    Raises JournalError when another daemon works here or the journal is not whole.
    """
    with held(config.state_dir):
        signer = checkpoints.find_signer(config.state_dir)
        path = config.state_dir / "audit.jsonl"
        journal = Journal.open(path, now=utc_now, limits=config.audit, signer=signer)
        log.info("audit.opened", **journal.head.log_fields(), signed_by=signer.id if signer else None)
        epoch, history, states = max(journal.epoch(), above) + 1, History.of(journal), journal.states()
        loops, series = {}, {}
        for target in config.targets:
            directory = config.state_dir / target.name
            directory.mkdir(mode=0o700, exist_ok=True)
            engine, traffic = actuators(config, target, epoch)
            series[target.name] = TimeSeries.load(directory / "series.jsonl")
            loops[target.name] = TargetLoop(
                state=replace(states.get(target.name, State(target=target.name)), mode=mode),
                machine=Machine(rules_of(config, target)),
                journal=journal,
                engine=engine,
                traffic=traffic,
                sensors=tuple(part.plugin for part in target.sensors),
                state_dir=directory,
                now=utc_now,
                heard=history.add_state,
                seen=series[target.name].add,
                fold=Aggregator(slo=target.slo),
            )
        couriers = tuple(courier(config, receiver, journal, loops) for receiver in config.notify)
        daemon = Daemon(loops=loops, journal=journal, history=history, series=series, couriers=couriers)
        try:
            yield daemon, epoch
        finally:
            journal.close()


async def run(config: Config, mode: Mode) -> None:
    """Be the daemon until a signal ends it. What must work before anything is decided is checked first."""
    entry = ApiCredentials.of(config.door, utc_now)
    if mode != "advise":
        await refuse_what_cannot_work(config)
    with assembled(config, mode, await newest_epoch(config)) as (daemon, epoch):
        log.info("daemon.starting", mode=mode, epoch=epoch, targets=len(daemon.loops), api=config.door.listen)
        app = build_app(daemon, entry.tokens, entry.hosts, pages(), peers=entry.peers)
        runner = await serve(app, *config.door.listen, tls=entry.tls, socket_mode=entry.socket_mode)
        try:
            await daemon.run(epoch, ready=lambda: log.info("daemon.ready"), reload=entry.reload)
        finally:
            await runner.cleanup()
            log.info("daemon.stopped", **daemon.journal.head.log_fields())


def courier(
    config: Config, receiver: Receiver, journal: Journal | None, loops: Mapping[str, TargetLoop]
) -> NoticeDelivery:
    """Who takes the daemon's notices to the receiver; without a journal only single ones can be sent."""
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
    )


async def newest_epoch(config: Config) -> int:
    """The epoch that the proxies were last written under: a journal that was moved away does not know it."""
    seen = [await actuators(config, target, epoch=0)[1].observe() for target in config.targets]
    return max((traffic.epoch for traffic in seen if traffic is not None), default=0)


async def refuse_what_cannot_work(config: Config) -> None:
    """What makes every rollout fail, as a proxy that cannot split, is said at the start."""
    for target in config.targets:
        _, traffic = actuators(config, target, epoch=0)
        found = [f"[targets.traffic] {target.name}: {what}" for what in await traffic.problems()]
        if found:
            raise ConfigError("\n".join(found))


async def problems(config: Config) -> list[str]:
    """Why this config cannot work here, one line each with its key; empty when it can."""
    found = []
    try:
        ApiCredentials.of(config.door, utc_now)
    except ConfigError as error:
        found.append(str(error))
    for target in config.targets:
        engine, traffic = actuators(config, target, epoch=0)
        of_engine, of_traffic = await asyncio.gather(engine.problems(), traffic.problems())
        found += [f"[targets.engine] {target.name}: {what}" for what in of_engine]
        found += [f"[targets.traffic] {target.name}: {what}" for what in of_traffic]
    sockets = [Path(one.removeprefix(UNIX)) for one in config.door.listen if one.startswith(UNIX)]
    needed = [("[agent] state_dir", config.state_dir), *(("[api] listen", path.parent) for path in sockets)]
    for receiver in config.notify:
        try:
            courier(config, receiver, None, {}).check()
        except NoticeError as error:
            found.append(f"[[notify]] {receiver.name}: {error}")
    return found + [why for why in (unwritable(key, folder) for key, folder in needed) if why]


def unwritable(key: str, folder: Path) -> str:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        probe = nearest / ".trimtab-check"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"{key}: {nearest} cannot be written: {error.strerror}; choose a place that you own"
    return ""

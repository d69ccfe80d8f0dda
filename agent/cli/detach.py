"""`trimtab detach`: give the servers back to their owners, and remove what trimtab made beside them."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol, cast

from agent.cli.dispatch import Subparsers, add_command
from agent.config.loader import Config, Target, load
from agent.domain.errors import ConfigError
from agent.domain.ports import Lock, Site
from agent.runtime.daemon import utc_now
from agent.runtime.lock import find_locks

_LOCKED_S = 60.0
"""For the locks of a daemon that vanished: they last for some time without it."""


class GivesBack(Protocol):
    """An engine whose servers stand in for those of people. Idempotent, returns what was done; ActError."""

    async def give_back(self) -> Sequence[str]:
        """Let people's own servers serve alone; the addresses of the others lead to them."""
        ...


class Clears(Protocol):
    """An engine or a proxy that keeps objects for a target. Idempotent, returns what was done; ActError."""

    async def clear(self) -> Sequence[str]:
        """Remove them, without harm to people's own servers."""
        ...


def add_detach(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "detach",
        "give the servers back, before trimtab is removed",
        "For Kubernetes: the operator's Deployments serve again, with the flags that they have now, and what "
        "trimtab made beside them is removed. First let the clients ask the Service of the Deployment, and "
        "stop the daemon and its proxy. Refused while a daemon runs. Can be repeated.",
    )
    parser.add_argument("config", type=Path, metavar="FILE", help="the daemon's config")
    parser.set_defaults(run=_detach)


def _detach(args: argparse.Namespace) -> int:
    asyncio.run(_detach_all(load(args.config)))
    return 0


async def _detach_all(config: Config) -> None:
    locks = find_locks(config)
    async with AsyncExitStack() as held:
        for lock in locks:
            await _hold(held, lock, config)
        for target in config.targets:
            said = await _detach_target(config, target)
            sys.stdout.writelines(f"{target.name}: {what}\n" for what in said or ["nothing to remove"])
    for lock in locks:
        await lock.remove()


async def _hold(held: AsyncExitStack, lock: Lock, config: Config) -> None:
    """Hold the lock until `held` is closed. Raises ConfigError if a daemon holds it."""
    try:
        async with asyncio.timeout(_LOCKED_S):
            await held.enter_async_context(lock.hold(config.state_dir, utc_now))
    except TimeoutError as error:
        raise ConfigError("a daemon runs with these targets: stop it first, then run this again") from error


async def _detach_target(config: Config, target: Target) -> list[str]:
    """Return what was done. Of an engine without these methods the servers go on without trimtab."""
    site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=0)
    engine, traffic = target.engine.plugin.bind(site), target.traffic.plugin.bind(site)
    said: list[str] = []
    if hasattr(engine, "give_back"):
        said += await cast("GivesBack", engine).give_back()
    for part in (traffic, engine):
        if hasattr(part, "clear"):
            said += await cast("Clears", part).clear()
    return said

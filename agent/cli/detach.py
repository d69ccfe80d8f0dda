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


class Detachable(Protocol):
    """An engine or a proxy that keeps objects beside what people own."""

    async def detach(self) -> Sequence[str]:
        """Let people's own servers serve again, and remove all else; return what was done. Idempotent.

        Raises ActError; what is done then stays done.
        """
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
            said = [what for part in _parts(config, target) for what in await part.detach()]
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


def _parts(config: Config, target: Target) -> list[Detachable]:
    """Return the engine and the proxy, those that keep something; the others go on without trimtab."""
    site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=0)
    bound = [plugin.plugin.bind(site) for plugin in (target.engine, target.traffic)]
    return [cast("Detachable", part) for part in bound if hasattr(part, "detach")]

"""`flettner detach`: return the servers to their owners, and remove the objects that flettner created."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol, cast

from flettner.agent.config.loader import Config, Target, load_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.ports import Lock, Site
from flettner.agent.runtime.lock import find_locks
from flettner.primitives.wall_clock import utc_now
from flettner.tools.cli.dispatch import Subparsers, add_command

_LOCKED_S = 60.0
"""Seconds to wait for the locks of a daemon that crashed: they expire some time after it."""


class DetachableEngine(Protocol):
    """An engine whose servers replace servers of the operator."""

    async def give_back(self) -> Sequence[str]:
        """Let the operator's servers serve alone, under the addresses of flettner's servers too.

        Idempotent; returns a sentence for each action. Raises ActError.
        """
        ...


class Leavable(Protocol):
    """An engine or a proxy whose processes go on without flettner."""

    async def way_back(self) -> Sequence[str]:
        """Return what the operator does to serve without it, in order. Raises ActError, FlagError."""
        ...


class ObjectOwner(Protocol):
    """An engine or a proxy that keeps objects of its own for a target."""

    async def clear(self) -> Sequence[str]:
        """Remove the objects; the operator's servers go on.

        Idempotent; returns a sentence for each action. Raises ActError.
        """
        ...


def add_detach(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "detach",
        "return the servers to their owners, before flettner is removed",
        "For Kubernetes: the operator's Deployments serve again, with the flags that they have now, and all "
        "objects that flettner made are removed. First point the clients at the Service of the Deployment, "
        "and stop the daemon and its proxy. For processes and containers: prints the way back, step by step. "
        "Refused while a daemon runs. Can be repeated.",
    )
    parser.add_argument("config", type=Path, metavar="FILE", help="the daemon's config")
    parser.set_defaults(run=_detach)


def _detach(args: argparse.Namespace) -> int:
    asyncio.run(_detach_all(load_config(args.config)))
    return 0


async def _detach_all(config: Config) -> None:
    locks = find_locks(config)
    async with AsyncExitStack() as held:
        for lock in locks:
            await _hold(held, lock, config)
        for target in config.targets:
            actions = await _detach_target(config, target)
            steps = await _list_way_back(config, target)
            done = [*actions, *(f"{number}. {step}" for number, step in enumerate(steps, 1))]
            sys.stdout.writelines(f"{target.name}: {what}\n" for what in done or ["nothing to remove"])
    for lock in locks:
        await lock.remove()


async def _hold(held: AsyncExitStack, lock: Lock, config: Config) -> None:
    """Hold the lock until `held` is closed. Raises ConfigError if a daemon holds it."""
    try:
        async with asyncio.timeout(_LOCKED_S):
            await held.enter_async_context(lock.hold(config.state_dir, utc_now))
    except TimeoutError as error:
        raise ConfigError(
            "the lock of these targets is not free, as said above: stop the daemon that holds it, then run "
            "this again"
        ) from error


async def _list_way_back(config: Config, target: Target) -> list[str]:
    """The steps that the operator takes for what still runs: the command in force, its address, Envoy."""
    site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=0)
    steps: list[str] = []
    for part in (target.engine.plugin.bind(site), target.traffic.plugin.bind(site)):
        if hasattr(part, "way_back"):
            steps += await cast("Leavable", part).way_back()
    return steps


async def _detach_target(config: Config, target: Target) -> list[str]:
    """Return a sentence for each action. The servers of other engines run on without flettner."""
    site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=0)
    engine, traffic = target.engine.plugin.bind(site), target.traffic.plugin.bind(site)
    actions: list[str] = []
    if hasattr(engine, "give_back"):
        actions += await cast("DetachableEngine", engine).give_back()
    for part in (traffic, engine):
        if hasattr(part, "clear"):
            actions += await cast("ObjectOwner", part).clear()
    return actions

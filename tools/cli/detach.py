"""`flettner detach`: return the servers to their owners, and remove the objects that flettner created."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from flettner.agent.config.loader import Config, Target, load_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.ports import Lock, Site
from flettner.agent.runtime.leaving import Wishes, leave, open_offline
from flettner.agent.runtime.lock import find_locks
from flettner.primitives.wall_clock import utc_now
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.cli.exits import NO, OK

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
        "and stop the daemon and its proxy. For processes and containers: prints the way back, step by step; "
        "with --do goes it: your own server starts at its old address with the flags in force, gets the "
        "traffic, flettner's ends, and Envoy ends once no client asks it. "
        "Refused while a daemon runs. Can be repeated.",
    )
    parser.add_argument("config", type=Path, metavar="FILE", help="the daemon's config")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to detach; default: all")
    parser.add_argument("--do", action="store_true", help="go the way back for processes and containers")
    parser.add_argument(
        "--stop-first",
        action="store_true",
        help="with --do: end the server in force before yours starts, where both do not fit; requests wait "
        "([targets.traffic] hold_s) or are refused meanwhile",
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --do: Envoy ends once no request came for so long; default: %(default)g",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="with --do: how long the clients have to leave Envoy, which else stays; default: %(default)g",
    )
    parser.set_defaults(run=_detach)


def _detach(args: argparse.Namespace) -> int:
    config = load_config(args.config)
    names = [target.name for target in config.targets]
    if unknown := [name for name in args.targets if name not in names]:
        raise ConfigError(f"{args.config} has no target {', '.join(unknown)}; it has {', '.join(names)}")
    targets = [target for target in config.targets if target.name in (args.targets or names)]
    if args.do:
        wishes = Wishes(stop_first=args.stop_first, quiet_s=args.quiet, wait_s=args.wait)
        return OK if asyncio.run(_leave_all(config, targets, wishes)) else NO
    asyncio.run(_detach_all(config, targets))
    return OK


async def _leave_all(config: Config, targets: Sequence[Target], wishes: Wishes) -> bool:
    """Return whether nothing is left. The targets of other engines are detached as without --do."""
    everything_left = True
    with open_offline(config) as journal:
        for target in targets:
            say = partial(_say, target.name)
            everything_left &= await leave(config, target, journal, wishes, say)
    await _detach_all(config, targets)
    return everything_left


def _say(target: str, sentence: str) -> None:
    sys.stdout.write(f"{target}: {sentence}\n")
    sys.stdout.flush()


async def _detach_all(config: Config, targets: Sequence[Target]) -> None:
    locks = find_locks(config)
    async with AsyncExitStack() as held:
        for lock in locks:
            await _hold(held, lock, config)
        for target in targets:
            actions = await _detach_target(config, target)
            steps = await _list_way_back(config, target)
            done = [*actions, *(f"{number}. {step}" for number, step in enumerate(steps, 1))]
            sys.stdout.writelines(f"{target.name}: {what}\n" for what in done or ["nothing to remove"])
    if len(targets) == len(config.targets):
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

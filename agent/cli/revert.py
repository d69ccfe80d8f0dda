"""`trimtab revert`: what systemd runs when the daemon has ended badly (ExecStopPost)."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from agent.cli.dispatch import Subparsers
from agent.config.loader import Config, load
from agent.domain.errors import ActError, JournalError
from agent.domain.ports import Site, Traffic
from agent.runtime.lock import hold_lock
from agent.terminal.tables import complain

ENDED_WELL = (
    "success"  # SERVICE_RESULT of systemd.exec(5): stopped, or to be started again with a new version
)


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "revert",
        help="after a daemon that ended badly: give a new server's share back at once",
        description="Ends each lease in the proxies, so that what a candidate had goes to the servers that "
        "stay, now and not when the lease is over. Changes nothing while a daemon works here, nor after one "
        "that systemd says has ended well (SERVICE_RESULT); may be repeated. The next daemon goes on there.",
    )
    parser.add_argument(
        "-c", "--config", type=Path, required=True, metavar="FILE", help="the daemon's config"
    )
    parser.set_defaults(run=_revert)


def _revert(args: argparse.Namespace) -> int:
    if os.environ.get("SERVICE_RESULT", "") == ENDED_WELL:
        return 0
    config = load(args.config)
    try:
        with hold_lock(config.state_dir):
            asyncio.run(_end_leases(config))
    except JournalError as error:  # another daemon works here, and renews what it wants to keep
        complain(f"nothing to revert: {error}")
    return 0


async def _end_leases(config: Config) -> None:
    """Each target's, whatever became of another's. Raises the first ActError."""
    failed: ActError | None = None
    for target in config.targets:
        site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=0)
        traffic: Traffic = target.traffic.plugin.bind(site)
        try:
            if await traffic.end_lease():
                sys.stdout.write(
                    f"{target.name}: the lease has ended; the new server gets no more requests\n"
                )
        except ActError as error:
            failed = failed or error
    if failed is not None:
        raise failed

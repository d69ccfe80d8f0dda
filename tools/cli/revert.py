"""`flettner revert`: run by systemd (ExecStopPost) after the daemon ended; it ends leases after a crash."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from flettner.agent.config.loader import Config, load_config
from flettner.agent.domain.errors import ActError, JournalError
from flettner.agent.domain.ports import Site, Traffic
from flettner.agent.runtime.lock import hold_lock
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.terminal.messages import complain

CLEAN_EXIT = "success"  # SERVICE_RESULT of systemd.exec(5): stopped, or restarted with a new version


def add_revert(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "revert",
        "after a daemon crash: route a new server's traffic back now",
        "Ends each lease in the proxies, so that the traffic of a new server returns to the old servers "
        "now instead of at the end of the lease. Changes nothing while a daemon uses this state_dir, nor "
        "after a clean exit as reported by systemd (SERVICE_RESULT). Can be repeated. The next daemon "
        "continues from the resulting state.",
    )
    parser.add_argument(
        "-c", "--config", type=Path, required=True, metavar="FILE", help="the daemon's config"
    )
    parser.set_defaults(run=_revert)


def _revert(args: argparse.Namespace) -> int:
    if os.environ.get("SERVICE_RESULT", "") == CLEAN_EXIT:
        return 0
    config = load_config(args.config)
    try:
        with hold_lock(config.state_dir):
            asyncio.run(_end_leases(config))
    except JournalError as error:  # another daemon holds the lock and renews its leases
        complain(f"nothing reverted: {error}")
    return 0


async def _end_leases(config: Config) -> None:
    """End the leases of all targets, even if one of them fails. Raises the first ActError."""
    failed: ActError | None = None
    for target in config.targets:
        site = Site(target=target.name, state_dir=config.state_dir / target.name, epoch=0)
        traffic: Traffic = target.traffic.plugin.bind(site)
        try:
            if await traffic.end_lease():
                sys.stdout.write(f"{target.name}: lease ended; the new server receives no more requests\n")
        except ActError as error:
            failed = failed or error
    if failed is not None:
        raise failed

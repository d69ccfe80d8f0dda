"""`trimtab run` and `trimtab check`: the daemon, and whether it could work."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from agent.cli.dispatch import Subparsers
from agent.cli.migration_steps import steps
from agent.config.loader import load
from agent.domain.errors import ConfigError
from agent.telemetry import logging


def register(subparsers: Subparsers) -> None:
    daemon = subparsers.add_parser("run", help="the daemon")
    daemon.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="its config")
    daemon.add_argument("--dry-run", action="store_true", help="advise only, whatever the config says")
    daemon.add_argument(
        "--log-level",
        choices=logging.LEVELS,
        default="info",
        help="of what goes to the log; default: %(default)s",
    )
    daemon.set_defaults(run=_run)
    check = subparsers.add_parser("check", help="is this config right, and would it work here?")
    check.add_argument("config", type=Path, metavar="FILE", help="the config")
    check.add_argument("--json", action="store_true", help="as JSON")
    check.set_defaults(run=_check)


def _run(args: argparse.Namespace) -> int:
    from agent.runtime.wiring import run  # noqa: PLC0415 - half a second that `trimtab status` need not wait

    logging.configure(args.log_level)
    config = load(args.config)
    asyncio.run(run(config, "advise" if args.dry_run else config.mode))
    return 0


def _check(args: argparse.Namespace) -> int:
    """Exit 0: it would work; what is to be done by hand is listed. 1: it would not; so is every reason."""
    from agent.runtime.wiring import find_problems  # noqa: PLC0415 - as above

    by_hand: dict[str, str] = {}
    try:
        config = load(args.config)
        found = asyncio.run(find_problems(config))
        by_hand = {target.name: steps(target, args.config) for target in config.targets if not found}
    except ConfigError as error:
        found = str(error).splitlines()
    if args.json:
        sys.stdout.write(json.dumps({"ok": not found, "problems": found, "take_over": by_hand}) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in found or [f"{args.config}: ready to run"])
        sys.stdout.writelines(f"\n{text}\n" for text in by_hand.values() if text)
    return 1 if found else 0

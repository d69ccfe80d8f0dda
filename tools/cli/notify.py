"""`flettner notify test`: send a test message to each receiver of a config, or to the named receiver."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from flettner.agent.config.loader import Config, load_config
from flettner.agent.config.notify import Receiver
from flettner.agent.domain.errors import ConfigError, NoticeError
from flettner.tools.cli.dispatch import Subparsers, add_command


def add_notify(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "notify", "test the notification receivers of a config")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    test = add_command(commands, "test", "send a test message to the receivers of a config")
    test.add_argument(
        "name", nargs="?", default="", metavar="NAME", help="name of one receiver; default: all"
    )
    test.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="the daemon's config")
    test.add_argument("--json", action="store_true", help="print JSON")
    test.set_defaults(run=_test)


def _test(args: argparse.Namespace) -> int:
    """Exit 0 if every receiver accepted the message, else 1."""
    config = load_config(args.config)
    chosen = [receiver for receiver in config.notify if args.name in ("", receiver.name)]
    if not config.notify:
        raise ConfigError(f"{args.config}: no [[notify]] table; docs/notifications.md shows how to write one")
    if not chosen:
        names = ", ".join(receiver.name for receiver in config.notify)
        raise ConfigError(f"{args.config}: no [[notify]] named {args.name} (there are: {names})")
    results = asyncio.run(_send_tests(config, chosen))
    if args.json:
        sys.stdout.write(
            json.dumps([{"name": name, "sent": not why, "why": why} for name, why in results]) + "\n"
        )
    else:
        sys.stdout.writelines(f"{name}: {why or 'sent'}\n" for name, why in results)
    return 1 if any(why for _, why in results) else 0


async def _send_tests(config: Config, chosen: list[Receiver]) -> list[tuple[str, str]]:
    from flettner.agent.runtime.wiring import build_delivery  # noqa: PLC0415 - half a second that `flettner notify -h` saves

    async def send(receiver: Receiver) -> tuple[str, str]:
        try:
            await build_delivery(config, receiver, None, {}).test()
        except NoticeError as error:
            return receiver.name, str(error)
        return receiver.name, ""

    return list(await asyncio.gather(*map(send, chosen)))

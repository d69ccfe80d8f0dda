"""`flettner run` and `flettner check`: start the daemon, and check whether its config works on this host.

For targets with running containers `check` also prints the one-time steps that route their clients through
the proxy.
"""

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from flettner.agent.config.loader import Config, Target, load_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.telemetry import logging
from flettner.primitives.address import Address
from flettner.tools.cli.dispatch import Subparsers, add_command

_REDIRECT = "-m addrtype --dst-type LOCAL --dport PORT -j REDIRECT --to-ports"
_MIGRATION = """\
{target}: how to route the clients of {every} through the proxy, once. No request needs to be lost.
1. flettner run -c {config}     with [agent] mode = "approve" (in "advise" there is no proxy)
   Envoy listens on {listen} and sends everything to {every}; nothing else changes.{only_here}
2. curl -fsS http://{here}:{port}/v1/models
   returns the same answer as the container.
3. Point the clients to the proxy. `docker port {first}` shows the PORT that they use now. Either:
   a) Change the base URL, load balancer or DNS. Nothing is lost: both addresses answer meanwhile.
   b) Keep the address with a firewall rule. Nothing is lost: open connections stay where they are.
      iptables -t nat -I PREROUTING -p tcp {rule} {port}
      iptables -t nat -I OUTPUT -p tcp ! -d 127.0.0.0/8 {rule} {port}
      A reboot removes the rules unless you make them permanent; 127.0.0.1:PORT is not redirected.
   c) Restart the container on another port and let Envoy listen on the old one: connections are
      refused until the model is loaded again.
4. When `docker logs --since 10m {first}` shows only requests of the proxy, changes can be approved.
   Clients that still use the container's own address are cut off when the first change replaces it.
More: docs/docker.md"""
_ONLY_HERE = """
   Only this host reaches {host}: for clients elsewhere, and for 3b, write [targets.traffic]
   listen = "0.0.0.0:{port}" first."""


def add_run(subparsers: Subparsers) -> None:
    daemon = add_command(subparsers, "run", "run the daemon")
    daemon.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="the config")
    daemon.add_argument(
        "--dry-run", action="store_true", help='advise only, as with mode = "advise" in the config'
    )
    daemon.add_argument(
        "--accept-new-journal",
        action="store_true",
        help="for one start: continue although the audit journal was removed or cut, is no longer signed or "
        "is dated in the future; an entry records it (docs/audit.md)",
    )
    daemon.add_argument(
        "--log-level",
        choices=logging.LEVELS,
        default="info",
        help="lowest level that is logged; default: %(default)s",
    )
    daemon.set_defaults(run=_run)


def add_check(subparsers: Subparsers) -> None:
    check = add_command(
        subparsers,
        "check",
        "validate a config and check that it works on this host",
        "Exit status 0: ready to run; manual steps are listed. 1: not ready; every problem is listed.",
    )
    check.add_argument("config", type=Path, metavar="FILE", help="the config")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_check)


def _run(args: argparse.Namespace) -> int:
    from flettner.agent.runtime.wiring import run  # noqa: PLC0415 - half a second that `flettner run -h` saves

    logging.configure(args.log_level)
    config = load_config(args.config)
    mode = "advise" if args.dry_run else config.mode
    for url in console_urls(config):
        structlog.get_logger().info("console.address", url=url)
    with suppress(asyncio.CancelledError):  # stopped while it waited for its start
        load = partial(load_config, args.config)
        asyncio.run(run(config, mode, accept_new_journal=args.accept_new_journal, load=load))
    return 0


def console_urls(config: Config) -> list[str]:
    """Where a browser of this host reaches the console; none over a unix socket alone."""
    scheme = "https" if config.api.certificate else "http"
    tcp = [listener for listener in config.api.listen if isinstance(listener, Address)]
    return [f"{scheme}://{address.reached_here() if address.is_wildcard else address}/" for address in tcp]


def _check(args: argparse.Namespace) -> int:
    from flettner.agent.runtime.api_check import is_daemon_running  # noqa: PLC0415 - as above
    from flettner.agent.runtime.host_check import find_obstacles, find_problems  # noqa: PLC0415 - as above

    by_hand: dict[str, str] = {}
    obstacles: list[str] = []
    following = f"run -c {args.config}"
    try:
        config = load_config(args.config)
        following = "reload" if is_daemon_running(config.state_dir) else following
        problems = asyncio.run(find_problems(config))
        if config.mode == "advise":
            obstacles = asyncio.run(find_obstacles(config))
        by_hand = {
            target.name: migration_steps(target, args.config) for target in config.targets if not problems
        }
    except ConfigError as error:
        problems = str(error).splitlines()
    if args.json:
        document = {
            "ok": not problems,
            "problems": problems,
            "obstacles": obstacles,
            "take_over": by_hand,
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in problems or [f"{args.config}: ready to run"])
        sys.stdout.writelines(f"to mend before approve or auto: {line}\n" for line in obstacles)
        sys.stdout.writelines(f"\n{text}\n" for text in by_hand.values() if text)
        if not problems:
            sys.stdout.write(f"next: flettner {following}\n")
    return 1 if problems else 0


def migration_steps(target: Target, config: Path) -> str:
    """Return the text to print; empty for a target without adopted containers."""
    names = target.engine.options.get("containers")
    if target.engine.name != "docker" or not names:
        return ""
    listen = target.listen
    here = listen.reached_here() if listen.is_wildcard else listen
    return _MIGRATION.format(
        target=target.name,
        first=names[0],
        every=", ".join(names),
        config=config,
        listen=listen,
        here=here.url_host,
        port=listen.port,
        only_here=_ONLY_HERE.format(host=listen.host, port=listen.port) if listen.is_loopback else "",
        rule=_REDIRECT,
    )

"""What the commands share that talk to a running daemon: their options, their errors, their answers."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from agent.api.client import LOOPBACK, SOCKET, ApiClient, Json, RefusedError, UnreachableError, link
from agent.cli.dispatch import Subparsers
from agent.cli.exits import AWAY, NO, OK
from agent.terminal.tables import complain

RemoteCall = Callable[[argparse.Namespace, ApiClient], int]


def add(subparsers: Subparsers, name: str, command: RemoteCall, says: str) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(name, help=says)
    parser.add_argument("--json", action="store_true", help="the daemon's own answer")
    parser.add_argument("--url", help=f"TRIMTAB_URL, else {SOCKET} where it is, else {LOOPBACK}")
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token; else TRIMTAB_TOKEN or TRIMTAB_TOKEN_FILE"
    )

    def run(args: argparse.Namespace) -> int:
        daemon = link(args.url, args.token_file)
        try:
            return command(args, daemon)
        except RefusedError as refusal:
            if args.json:
                print_json(refusal.problem)
            complain(_in_commands(refusal, daemon))
            return NO
        except UnreachableError as error:
            complain(error)
            return AWAY

    parser.set_defaults(run=run, command=name)
    return parser


def _in_commands(refusal: RefusedError, daemon: ApiClient) -> str:
    """What the daemon says to programs, in words of the command line."""
    if refusal.problem["status"] == HTTPStatus.UNAUTHORIZED and daemon.token is None:
        return (
            "no token was sent: name one with --token-file or TRIMTAB_TOKEN (`trimtab token new` makes one);"
            " over the unix socket an account with a role in [api] users or groups needs none"
        )
    return re.sub(r"GET /v1/(suggestions|rollouts)", r"`trimtab \1`", str(refusal))


def say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_json(answer: Json) -> None:
    say(json.dumps(answer, indent=2))


def show(args: argparse.Namespace, answer: Json, text: str) -> int:
    if args.json:
        print_json(answer)
    else:
        say(text)
    return OK


def path(kind: str, name: str, *verb: str) -> str:
    return "/".join(("/v1", kind, quote(name, safe=""), *verb))

"""What the commands share that talk to a running daemon: their options, their errors, their answers."""

import argparse
import json
import sys
from collections.abc import Callable
from urllib.parse import quote

from agent.cli import Subparsers
from agent.cli.exits import AWAY, NO, OK
from agent.cli.link import LOOPBACK, SOCKET, Json, Link, RefusedError, UnreachableError, link
from agent.cli.tables import safe

Command = Callable[[argparse.Namespace, Link], int]


def add(subparsers: Subparsers, name: str, command: Command, says: str) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(name, help=says, description=says)
    parser.add_argument("--json", action="store_true", help="the daemon's own answer")
    parser.add_argument("--url", help=f"TRIMTAB_URL, else {SOCKET} where it is, else {LOOPBACK}")
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token; else TRIMTAB_TOKEN or TRIMTAB_TOKEN_FILE"
    )

    def run(args: argparse.Namespace) -> int:
        try:
            return command(args, link(args.url, args.token_file))
        except RefusedError as refusal:
            if args.json:
                print_json(refusal.problem)
            sys.stderr.write(f"trimtab: {safe(refusal)}\n")
            return NO
        except UnreachableError as error:
            sys.stderr.write(f"trimtab: {safe(error)}\n")
            return AWAY

    parser.set_defaults(run=run, command=name)
    return parser


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

"""`trimtab ids`: what a shell completes names with. It is asked while a person types: it loads little."""

import argparse
import re
import sys
from dataclasses import replace

from agent.api.client import RefusedError, link
from agent.cli.dispatch import Subparsers
from agent.cli.exits import NO, OK
from agent.domain.errors import TrimtabError

PATIENCE_S = 1.0
KINDS = {"targets": "name", "suggestions": "id", "rollouts": "id"}
WAITING = frozenset({"checking", "open"})  # what can be approved or denied
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a shell would evaluate others


def register(subparsers: Subparsers) -> None:
    own = subparsers.add_parser(
        "ids",
        help="names for a shell's completion, one a line",
        description="None, and exit status 1, where no daemon answers within a second.",
    )
    own.add_argument("kind", choices=tuple(KINDS), help="of what; of suggestions those that wait")
    own.set_defaults(run=_ids)


def _ids(args: argparse.Namespace) -> int:
    try:
        answer = replace(link(None, None), patience_s=PATIENCE_S).get(f"/v1/{args.kind}")
    except (RefusedError, TrimtabError):
        return NO
    found = (each for each in answer[args.kind] if args.kind != "suggestions" or each["status"] in WAITING)
    names = (str(each[KINDS[args.kind]]) for each in found)
    sys.stdout.writelines(f"{name}\n" for name in names if PLAIN.fullmatch(name))
    return OK

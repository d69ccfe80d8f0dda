"""What the commands that call a running daemon share: options, errors, output."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

from flettner.agent.api.client import (
    LOOPBACK,
    SOCKET,
    ApiClient,
    Json,
    RefusedError,
    UnreachableError,
    connect,
)
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.cli.exits import AWAY, NO, OK
from flettner.tools.terminal.messages import complain

RemoteCall = Callable[[argparse.Namespace, ApiClient], int]


def add_remote_command(
    subparsers: Subparsers, name: str, call: RemoteCall, summary: str, details: str = ""
) -> argparse.ArgumentParser:
    parser = add_command(subparsers, name, summary, details)
    parser.add_argument("--json", action="store_true", help="print the raw JSON response")
    add_remote_options(parser)
    parser.set_defaults(run=partial(call_daemon, call), command=name)
    return parser


def add_remote_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help=f"the daemon's address; default: FLETTNER_URL, {SOCKET} if it exists, or {LOOPBACK}"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file with the API token; default: FLETTNER_TOKEN, or the file FLETTNER_TOKEN_FILE",
    )


def call_daemon(call: RemoteCall, args: argparse.Namespace) -> int:
    """Return the exit status; `args` has the remote options and `json`."""
    daemon = connect(args.url, args.token_file)
    try:
        return call(args, daemon)
    except RefusedError as refusal:
        if args.json:
            print_json(refusal.problem)
        complain(_explain(refusal, daemon))
        return NO
    except UnreachableError as error:
        complain(error)
        return AWAY


def _explain(refusal: RefusedError, daemon: ApiClient) -> str:
    """Return the daemon's message with commands instead of REST requests."""
    if refusal.problem["status"] == HTTPStatus.UNAUTHORIZED and daemon.token is None:
        return (
            "no token was sent: name one with --token-file or FLETTNER_TOKEN (`flettner token new` creates"
            " one); over the unix socket an account with a role in [api] users or groups needs none"
        )
    return re.sub(r"GET /v1/(suggestions|rollouts)", r"`flettner \1`", str(refusal))


def print_text(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_json(answer: Json) -> None:
    print_text(json.dumps(answer, indent=2))


def print_answer(args: argparse.Namespace, answer: Json, text: str) -> int:
    """Return the response as JSON if --json asks for it, else the text."""
    if args.json:
        print_json(answer)
    else:
        print_text(text)
    return OK


def path(kind: str, name: str, *verb: str) -> str:
    return "/".join(("/v1", kind, quote(name, safe=""), *verb))

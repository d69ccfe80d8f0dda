"""`flettner token`: create, list and revoke API tokens in the file that the daemon reads."""

import argparse
import fcntl
import json
import os
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import get_args

from flettner.agent.api.tokens import SHAPE, Token, load_tokens, mint_token, store_tokens
from flettner.agent.config.listen import Role, check_principal
from flettner.agent.config.types import target_name
from flettner.agent.domain.errors import ConfigError
from flettner.primitives.wall_clock import utc_now
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.terminal.messages import complain, remark
from flettner.tools.terminal.tables import format_table
from flettner.tools.terminal.values import format_time

DAYS = {"h": 1 / 24, "d": 1, "w": 7}
MAX_DAYS = 3650
IN_FORCE = "It takes effect when the daemon reloads the file (SIGHUP, or a restart)."


def add_token(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "token", "create, list and revoke API tokens")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    new = add_command(verbs, "new", "create a token; it is shown once and only its hash is stored")
    new.add_argument(
        "--role", required=True, choices=get_args(Role), help="its permissions (docs/security.md)"
    )
    new.add_argument(
        "--name", required=True, type=_parse_name, help="its user, as recorded in the audit journal"
    )
    new.add_argument(
        "--expires",
        type=_parse_lifetime,
        metavar="90d",
        help="lifetime in hours, days or weeks: 12h, 90d, 4w",
    )
    new.add_argument(
        "--target",
        action="append",
        type=_parse_target,
        metavar="TARGET",
        help="restrict it to this target; can be repeated",
    )
    new.set_defaults(run=partial(_run_locked, _new))

    listing = add_command(verbs, "list", "list the tokens")
    listing.set_defaults(run=_list)

    revoke = add_command(verbs, "revoke", "revoke a token")
    revoke.add_argument("id", metavar="ID", help="id from `flettner token list`")
    revoke.set_defaults(run=partial(_run_locked, _revoke))

    for verb in (new, listing, revoke):
        verb.add_argument(
            "--tokens-file", required=True, type=Path, metavar="FILE", help="[api] tokens_file of the config"
        )
        verb.add_argument("--json", action="store_true", help="print JSON")


def _parse_name(text: str) -> str:
    try:
        return check_principal(text.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_target(text: str) -> str:
    try:
        return target_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _format_targets(token: Token) -> str:
    return "every target" if token.targets is None else " ".join(token.targets)


def _parse_lifetime(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([hdw])", text)
    days = int(match[1]) * DAYS[match[2]] if match else 0
    if not 0 < days <= MAX_DAYS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a lifetime of at most ten years, such as 12h, 90d or 4w"
        )
    return timedelta(days=days)


def _run_locked(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Hold a lock: a token that is revoked while another one is created must not reappear."""
    path: Path = args.tokens_file
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"--tokens-file {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return command(args)
    finally:
        os.close(folder)


def _new(args: argparse.Namespace) -> int:
    now = utc_now().replace(microsecond=0)
    tokens = load_tokens(args.tokens_file) if args.tokens_file.exists() else {}
    expires = now + args.expires if args.expires else None
    targets = tuple(args.target) if args.target else None
    text, token = mint_token(
        role=args.role, principal=args.name, made_at=now, expires=expires, targets=targets
    )
    _store(args.tokens_file, [*tokens.values(), token])
    if args.json:
        row = token.model_dump(mode="json", exclude={"sha256"})
        sys.stdout.write(json.dumps({"token": text, **row}) + "\n")
    else:
        sys.stdout.write(f"{text}\n")
        until = f"until {format_time(expires.isoformat())}" if expires else "until it is revoked"
        remark(
            f"Store it now, it is not shown again: {token.role} for {token.principal}"
            f" on {_format_targets(token)}, {until}. {IN_FORCE}"
        )
    return 0


def _list(args: argparse.Namespace) -> int:
    tokens, now = load_tokens(args.tokens_file).values(), utc_now()
    if args.json:
        documents = [token.model_dump(mode="json", exclude={"sha256"}) for token in tokens]
        sys.stdout.write(json.dumps({"tokens": documents}, indent=2) + "\n")
        return 0
    rows = [
        (
            token.id,
            token.role,
            token.principal,
            _format_targets(token),
            format_time(token.made_at.isoformat() if token.made_at else None),
            format_time(token.expires.isoformat() if token.expires else None)
            + (" (expired)" if token.expires and token.expires <= now else ""),
        )
        for token in tokens
    ]
    sys.stdout.write(
        format_table(("ID", "ROLE", "NAME", "TARGETS", "CREATED", "EXPIRES"), rows) if rows else "no tokens\n"
    )
    return 0


def _revoke(args: argparse.Namespace) -> int:
    match = SHAPE.fullmatch(args.id)
    name = match[1] if match else args.id
    tokens = load_tokens(args.tokens_file)
    if name not in tokens:
        complain(f"no token {name}; `flettner token list` lists the tokens")
        return 1
    gone = tokens.pop(name)
    _store(args.tokens_file, list(tokens.values()))
    if args.json:
        sys.stdout.write(json.dumps({"revoked": gone.id}) + "\n")
    else:
        sys.stdout.write(f"{gone.id} ({gone.role} for {gone.principal}) is revoked. {IN_FORCE}\n")
    return 0


def _store(path: Path, tokens: list[Token]) -> None:
    try:
        store_tokens(path, tokens)
    except OSError as error:
        raise ConfigError(f"--tokens-file {path}: cannot be written: {error.strerror or error}") from error

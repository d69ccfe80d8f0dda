"""`trimtab rollouts`: what is carried out and what was; and waiting until one is over."""

import argparse
import shutil
import sys
import time

from agent.api.client import ApiClient, Json, UnreachableError
from agent.cli.dispatch import Subparsers
from agent.cli.exits import NO, OK
from agent.cli.remote_command import add, path, show
from agent.cli.watch import looked
from agent.domain.errors import ConfigError
from agent.terminal.cell_width import clipped
from agent.terminal.tables import complain, moment, rollout_line, rollouts_text, safe

OUTCOMES = ("running", "promoted", "rolled_back")
POLL_S = 1.0
AWAY_POLLS = 60


def register(subparsers: Subparsers) -> None:
    rollouts = add(subparsers, "rollouts", _rollouts, "what is carried out and what was, newest first")
    rollouts.add_argument("id", nargs="?", metavar="ROLLOUT", help="only this one")
    rollouts.add_argument("--target", metavar="TARGET", help="only of this target")
    rollouts.add_argument("--outcome", choices=OUTCOMES, help="only these")
    how = rollouts.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="until Ctrl-C or q, as it changes")
    how.add_argument("--log", action="store_true", help="the last lines that its new server wrote")


def _rollouts(args: argparse.Namespace, daemon: ApiClient) -> int:
    if args.log:
        return _log(args, daemon)
    chosen = {name: getattr(args, name) for name in ("target", "outcome") if getattr(args, name)}
    return looked(
        args, daemon, "rollouts", args.id, key="id", text=rollouts_text, line=rollout_line, chosen=chosen
    )


def _log(args: argparse.Namespace, daemon: ApiClient) -> int:
    """NO, with the reason on stderr, when there are no lines."""
    if args.id is None:
        raise ConfigError("--log: name the rollout whose log is wanted; `trimtab rollouts` lists them")
    answer = daemon.get(path("rollouts", args.id, "log"))
    if args.json or answer["lines"]:
        show(args, answer, "\n".join(safe(line.expandtabs()) for line in answer["lines"]))
    else:
        complain(answer["why"])
    return OK if answer["lines"] else NO


def waited(args: argparse.Namespace, daemon: ApiClient, rollout: str, wanted: str) -> int:
    """Until the rollout is over, with its progress on stderr. OK when its outcome is the wanted one.

    Raises UnreachableError when the daemon has not come back after AWAY_POLLS.
    """
    told, is_seen = "", sys.stderr.isatty()
    try:
        found = _heard(daemon, rollout)
        while True:
            line = rollout_line(found, counts=is_seen)
            if line != told:
                _tell(line, is_seen=is_seen)
                told = line
            if found["ended_at"] is not None:
                break
            time.sleep(POLL_S)
            found = _heard(daemon, rollout)
    except KeyboardInterrupt:
        sys.stderr.write("\n" if is_seen else "")
        complain(f"{rollout} goes on; `trimtab rollouts {rollout} --watch` looks at it")
        raise
    sys.stderr.write("\n" if is_seen else "")
    show(args, found, f"{rollout_line(found)}; it ended at {moment(found['ended_at'])}")
    return OK if found["outcome"] == wanted else NO


def _heard(daemon: ApiClient, rollout: str) -> Json:
    """The rollout, also from a daemon that is just started again."""
    for _ in range(AWAY_POLLS):
        try:
            return daemon.get(path("rollouts", rollout))
        except UnreachableError:
            time.sleep(POLL_S)
    return daemon.get(path("rollouts", rollout))


def _tell(line: str, *, is_seen: bool) -> None:
    """Over the line before, in a terminal."""
    room = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{clipped(line, room)}\x1b[K" if is_seen else f"{line}\n")
    sys.stderr.flush()

"""`flettner rollouts`: list rollouts, show a new server's log, wait for the end of a rollout."""

import argparse
import shutil
import sys
import time

from flettner.agent.api.client import ApiClient, Json, UnreachableError
from flettner.agent.domain.errors import ConfigError
from flettner.tools.cli.dispatch import Subparsers
from flettner.tools.cli.exits import NO, OK
from flettner.tools.cli.remote_command import add_remote_command, path, print_answer
from flettner.tools.cli.resource_text import format_rollout_line, format_rollouts
from flettner.tools.cli.watch import show_resources
from flettner.tools.terminal.cell_width import clip
from flettner.tools.terminal.messages import complain
from flettner.tools.terminal.values import escape_text, format_time

OUTCOMES = ("running", "promoted", "rolled_back")
POLL_S = 1.0
MAX_RETRIES = 60  # polls without an answer, while the daemon restarts


def add_rollouts(subparsers: Subparsers) -> None:
    rollouts = add_remote_command(subparsers, "rollouts", _rollouts, "list rollouts, newest first")
    rollouts.add_argument("id", nargs="?", metavar="ROLLOUT", help="show only this rollout")
    rollouts.add_argument("--target", metavar="TARGET", help="list only rollouts of this target")
    rollouts.add_argument("--outcome", choices=OUTCOMES, help="list only rollouts with this outcome")
    how = rollouts.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="show changes until Ctrl-C or q")
    how.add_argument("--log", action="store_true", help="show the last log lines of the rollout's new server")


def _rollouts(args: argparse.Namespace, daemon: ApiClient) -> int:
    if args.log:
        return _show_log(args, daemon)
    query = {name: getattr(args, name) for name in ("target", "outcome") if getattr(args, name)}
    return show_resources(
        args,
        daemon,
        "rollouts",
        args.id,
        key="id",
        text=format_rollouts,
        line=format_rollout_line,
        query=query,
    )


def _show_log(args: argparse.Namespace, daemon: ApiClient) -> int:
    """Print the lines; without any, print the reason on stderr and return NO."""
    if args.id is None:
        raise ConfigError("--log: name the rollout; `flettner rollouts` lists them")
    answer = daemon.get(path("rollouts", args.id, "log"))
    if args.json or answer["lines"]:
        print_answer(args, answer, "\n".join(escape_text(line.expandtabs()) for line in answer["lines"]))
    else:
        complain(answer["why"])
    return OK if answer["lines"] else NO


def wait_for_rollout(args: argparse.Namespace, daemon: ApiClient, rollout: str, wanted: str) -> int:
    """Wait for the end of the rollout and show progress on stderr. OK if it has the wanted outcome.

    Raises UnreachableError if the daemon does not answer MAX_RETRIES polls.
    """
    shown, in_terminal = "", sys.stderr.isatty()
    try:
        document = _poll(daemon, rollout)
        while True:
            line = format_rollout_line(document, counts=in_terminal)
            if line != shown:
                _write_progress(line, in_terminal=in_terminal)
                shown = line
            if document["ended_at"] is not None:
                break
            time.sleep(POLL_S)
            document = _poll(daemon, rollout)
    except KeyboardInterrupt:
        sys.stderr.write("\n" if in_terminal else "")
        complain(f"{rollout} continues; `flettner rollouts {rollout} --watch` shows it")
        raise
    sys.stderr.write("\n" if in_terminal else "")
    print_answer(
        args, document, f"{format_rollout_line(document)}; ended at {format_time(document['ended_at'])}"
    )
    return OK if document["outcome"] == wanted else NO


def _poll(daemon: ApiClient, rollout: str) -> Json:
    """Return the rollout; retried while the daemon restarts."""
    for _ in range(MAX_RETRIES):
        try:
            return daemon.get(path("rollouts", rollout))
        except UnreachableError:
            time.sleep(POLL_S)
    return daemon.get(path("rollouts", rollout))


def _write_progress(line: str, *, in_terminal: bool) -> None:
    """A terminal shows the line in place of the previous one."""
    columns = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{clip(line, columns)}\x1b[K" if in_terminal else f"{line}\n")
    sys.stderr.flush()

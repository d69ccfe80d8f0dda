"""The commands that show a running daemon's state and send it an operator's decisions."""

import argparse
import json
import re
import sys
import time
from typing import get_args
from urllib.parse import urlencode

from flettner.agent.api.client import ApiClient, Json, RefusedError
from flettner.agent.domain.statuses import SuggestionStatus
from flettner.tools.cli.dispatch import Subparsers
from flettner.tools.cli.exits import NO, OK, USAGE
from flettner.tools.cli.knob_argument import parse_knob
from flettner.tools.cli.remote_command import add_remote_command, path, print_answer, print_text
from flettner.tools.cli.resource_text import (
    describe_start,
    find_outage_s,
    format_change,
    format_suggestion,
    format_suggestions,
    format_target_line,
    format_targets,
    is_approved,
    is_held,
)
from flettner.tools.cli.rollouts import wait_for_rollout
from flettner.tools.cli.watch import show_resources
from flettner.tools.terminal.messages import complain
from flettner.tools.terminal.values import escape_text

STATUSES: tuple[str, ...] = get_args(SuggestionStatus)
POLL_S = 0.5
REASON = "reason, kept in the audit journal"
DIFFERENT = "do not compare the new servers' answers with those in force: needed for another model"


def add_status(subparsers: Subparsers) -> None:
    status = add_remote_command(subparsers, "status", _status, "show the status of all targets")
    status.add_argument("target", nargs="?", metavar="TARGET", help="show only this target")
    status.add_argument("--watch", action="store_true", help="show changes until Ctrl-C or q")


def add_suggestions(subparsers: Subparsers) -> None:
    suggestions = add_remote_command(
        subparsers,
        "suggestions",
        _suggestions,
        "list suggestions by rank, open suggestions first",
    )
    suggestions.add_argument("id", nargs="?", metavar="SUGGESTION", help="show only this suggestion, in full")
    suggestions.add_argument(
        "--patch", action="store_true", help="print its change as a patch of the server's manifest, to commit"
    )
    suggestions.add_argument(
        "--command",
        dest="copy",
        action="store_true",
        help="print the server's command line with its change, to copy; its address, secrets and environment "
        "are left out",
    )
    suggestions.add_argument("--status", choices=STATUSES, help="list only suggestions with this status")
    suggestions.add_argument("--target", metavar="TARGET", help="list only suggestions for this target")


def add_approve(subparsers: Subparsers) -> None:
    approve = add_remote_command(
        subparsers,
        "approve",
        _approve,
        "approve a suggestion after reviewing it",
        "Shows the suggestion and asks for confirmation unless --digest names what was reviewed.",
    )
    approve.add_argument("id", metavar="SUGGESTION", help="id from `flettner suggestions`")
    approve.add_argument(
        "--digest", type=_parse_digest, help="approve without asking, only if the digest still matches"
    )
    approve.add_argument("--reason", "--comment", default="", help=REASON)
    approve.add_argument(
        "--wait", action="store_true", help="wait for the end of the rollout; exit 1 if it was rolled back"
    )


def add_deny(subparsers: Subparsers) -> None:
    deny = add_remote_command(subparsers, "deny", _deny, "deny a suggestion")
    deny.add_argument("id", metavar="SUGGESTION", help="id from `flettner suggestions`")
    deny.add_argument("--reason", type=_parse_reason, required=True, help=REASON)


def add_propose(subparsers: Subparsers) -> None:
    propose = add_remote_command(
        subparsers, "propose", _propose, "propose a change; it needs approval like any suggestion"
    )
    propose.add_argument(
        "target",
        metavar="TARGET[,TARGET...]",
        help="name of the target; of several, each starts only after the one before it was promoted",
    )
    propose.add_argument(
        "knobs",
        nargs="+",
        type=parse_knob,
        metavar="KNOB=VALUE",
        help="for example max_num_seqs=128; null restores vLLM's default; an admin may also name image=, "
        "command=, env.NAME=, model=, revision= and tokenizer=",
    )
    propose.add_argument(
        "--accept-different-answers",
        action="store_true",
        help=DIFFERENT,
    )
    propose.add_argument("--reason", type=_parse_reason, required=True, help=REASON)


def add_undo(subparsers: Subparsers) -> None:
    undo = add_remote_command(
        subparsers,
        "undo",
        _undo,
        "propose the values before the last promotion of a target",
        "It is checked, needs approval and is rolled out like any proposal. A second undo, after the first "
        "was promoted, proposes the newer values again. To take back a rollout that runs: `flettner abort`.",
    )
    undo.add_argument("target", metavar="TARGET", help="name of the target")
    undo.add_argument("--accept-different-answers", action="store_true", help=DIFFERENT)
    undo.add_argument("--reason", type=_parse_reason, required=True, help=REASON)


def add_abort(subparsers: Subparsers) -> None:
    abort = add_remote_command(subparsers, "abort", _abort, "roll back the running rollout of a target")
    abort.add_argument(
        "target",
        metavar="TARGET",
        help="name of the target, or id of one of its rollouts: a later one may run",
    )
    abort.add_argument("--reason", type=_parse_reason, default="aborted from the command line", help=REASON)
    abort.add_argument(
        "--wait", action="store_true", help="wait for the end of the rollback; exit 1 if it was promoted"
    )


def add_pause(subparsers: Subparsers) -> None:
    command = _add_pause_or_resume(subparsers, "pause", "start no new rollouts on a target")
    command.add_argument(
        "--maintenance",
        action="store_true",
        help="also leave a server alone that exits, so that you can stop or replace it, until `resume`",
    )


def add_resume(subparsers: Subparsers) -> None:
    _add_pause_or_resume(subparsers, "resume", "end the pause of a target")


def add_reload(subparsers: Subparsers) -> None:
    add_remote_command(
        subparsers,
        "reload",
        _reload,
        "put the changed config file into force without a restart",
        "All of the change is taken, or nothing: what needs a restart is named. A running rollout goes on as"
        " it was approved.",
    )


def _add_pause_or_resume(subparsers: Subparsers, name: str, summary: str) -> argparse.ArgumentParser:
    command = add_remote_command(subparsers, name, _pause_or_resume, summary)
    command.add_argument("target", metavar="TARGET", help="name of the target")
    return command


def _parse_digest(text: str) -> str:
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a digest; `flettner suggestions --json` shows it")
    return text


def _parse_reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; write the reason that the audit journal keeps")
    return text


def _status(args: argparse.Namespace, daemon: ApiClient) -> int:
    return show_resources(
        args, daemon, "targets", args.target, key="name", text=format_targets, line=format_target_line
    )


def _suggestions(args: argparse.Namespace, daemon: ApiClient) -> int:
    if (args.patch or args.copy) and not args.id:
        option = "--patch" if args.patch else "--command"
        complain(f"{option}: name the suggestion; `flettner suggestions` lists them")
        return USAGE
    if args.id:
        suggestion = daemon.get(path("suggestions", args.id))
        if args.patch:
            return _print_patch(suggestion)
        if args.copy:
            return _print_command(suggestion)
        return print_answer(args, suggestion, format_suggestion(suggestion))
    query = {name: getattr(args, name) for name in ("status", "target") if getattr(args, name)}
    answer = daemon.get("/v1/suggestions" + (f"?{urlencode(query)}" if query else ""))
    return print_answer(args, answer, format_suggestions(answer["suggestions"]))


def _print_patch(suggestion: Json) -> int:
    patch = (suggestion["preflight"] or {}).get("patch", "")
    if not patch:
        complain(f"{suggestion['id']} has no patch: flettner does not know the file that starts the server")
        return NO
    print_text(patch)
    return OK


def _print_command(suggestion: Json) -> int:
    if not suggestion["command"]:
        complain(f"{suggestion['id']} has no command line to copy: it is {suggestion['status']}")
        return NO
    print_text(f"{escape_text(suggestion['command'])}\n")
    sys.stderr.write(
        "Take --host, --port, secrets and the environment from your own command: they are left out.\n"
    )
    return OK


def _approve(args: argparse.Namespace, daemon: ApiClient) -> int:
    digest = args.digest
    if digest is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            complain(
                "no terminal for the confirmation; name the reviewed version with --digest"
                f" (`flettner suggestions --json` shows it for {args.id})"
            )
            return USAGE
        suggestion = _wait_for_check(daemon, daemon.get(path("suggestions", args.id)))
        sys.stderr.write(format_suggestion(suggestion))
        if suggestion["status"] != "open":
            raise RefusedError({"status": 409, "detail": _why_not_open(suggestion)})
        if is_held(suggestion):
            raise RefusedError({"status": 409, "detail": f"{args.id} is held: {_how_to_commit(args.id)}"})
        outage = (
            f", with an outage of about {find_outage_s(suggestion):.0f} s"
            if find_outage_s(suggestion)
            else ""
        )
        if not _confirm(f"Approve this change{outage}? [y/N] "):
            complain("not approved")
            return NO
        digest = suggestion["digest"]
    body = {"digest": digest, "comment": args.reason}
    answer = daemon.post(path("suggestions", args.id, "approve"), body)
    when = f", and starts {describe_start(answer)}" if is_approved(answer) else ""
    if args.wait:
        if when:
            sys.stderr.write(f"{escape_text(answer['id'])} is approved{when} ...\n")
        answer = _wait_for_start(daemon, answer)
        return wait_for_rollout(args, daemon, _find_rollout(daemon, answer), "promoted")
    text = f"{escape_text(answer['id'])} is approved{when}: {format_change(answer)}"
    return print_answer(args, answer, text)


def _wait_for_start(daemon: ApiClient, suggestion: Json) -> Json:
    """Wait until an approved suggestion starts. Raises RefusedError if it ends without a rollout."""
    while is_approved(suggestion):
        time.sleep(POLL_S)
        suggestion = daemon.get(path("suggestions", suggestion["id"]))
    if suggestion["status"] != "approved":
        raise RefusedError({"status": 409, "detail": _why_not_open(suggestion)})
    return suggestion


def _find_rollout(daemon: ApiClient, suggestion: Json) -> str:
    """Return the id of the rollout that the approval started; it exists once the approval was answered."""
    answer = daemon.get(f"/v1/rollouts?{urlencode({'target': suggestion['target']})}")
    for rollout in answer["rollouts"]:
        if rollout["suggestion"] == suggestion["id"]:
            return str(rollout["id"])
    raise RefusedError({"status": 409, "detail": f"{suggestion['id']} is approved, but no rollout started"})


def _how_to_commit(suggestion: str) -> str:
    return f"commit the change where the manifest is kept: `flettner suggestions {suggestion} --patch`"


def _confirm(question: str) -> bool:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _deny(args: argparse.Namespace, daemon: ApiClient) -> int:
    answer = daemon.post(path("suggestions", args.id, "deny"), {"reason": args.reason})
    return print_answer(args, answer, f"{escape_text(answer['id'])} is denied")


def _propose(args: argparse.Namespace, daemon: ApiClient) -> int:
    to = dict(args.knobs)
    if len(to) < len(args.knobs):
        complain("a knob is given more than once; give it once")
        return USAGE
    body = {"to": to, "reason": args.reason}
    if args.accept_different_answers:
        body["accept_different_answers"] = True
    targets = args.target.split(",")
    if len({*filter(None, targets)}) < len(targets):
        complain("a target is named twice, or has no name; name each once, the canary of the others first")
        return USAGE
    for target in targets if len(targets) > 1 else ():
        daemon.get(path("targets", target))  # a misspelt one would leave the proposals before it
    for target in targets:
        answer = _wait_for_check(daemon, daemon.post(path("targets", target, "suggestions"), body))
        if (code := _print_proposed(args, daemon, answer)) != OK:
            return code
        body["after"] = answer["id"]
    return OK


def _undo(args: argparse.Namespace, daemon: ApiClient) -> int:
    body = {"reason": args.reason, "accept_different_answers": args.accept_different_answers}
    answer = daemon.post(path("targets", args.target, "undo"), body)
    return _print_proposed(args, daemon, _wait_for_check(daemon, answer))


def _print_proposed(args: argparse.Namespace, daemon: ApiClient, answer: Json) -> int:
    name = escape_text(answer["id"])
    if is_held(answer):
        return print_answer(args, answer, f"{format_suggestion(answer)}It is held: {_how_to_commit(name)}")
    if answer["status"] == "open":
        target = daemon.get(path("targets", answer["target"]))
        if target["mode"] == "advise":
            ending = f"To apply by hand: `flettner suggestions {name} --command` prints the new command line"
            return print_answer(args, answer, format_suggestion(answer) + ending)
        by = f" by another operator than {escape_text(answer['barred'])}" if answer["barred"] else ""
        ending = f"It needs approval{by}: `flettner approve {name}`"
        if target["paused"]:
            ending += f", once the pause has ended: `flettner resume {escape_text(answer['target'])}`"
        return print_answer(args, answer, format_suggestion(answer) + ending)
    print_answer(args, answer, format_suggestion(answer))
    why = f"was refused: {_last_note(answer)}" if answer["status"] == "refused" else "is no longer open"
    complain(f"{name} {why}")
    return NO


def _wait_for_check(daemon: ApiClient, suggestion: Json) -> Json:
    """Wait for the engine's preflight check, which takes a second, or a minute with vLLM."""
    if suggestion["status"] == "checking":
        sys.stderr.write(f"{escape_text(suggestion['id'])} is being checked; nothing is changed yet ...\n")
    while suggestion["status"] == "checking":
        time.sleep(POLL_S)
        suggestion = daemon.get(path("suggestions", suggestion["id"]))
    return suggestion


def _why_not_open(suggestion: Json) -> str:
    """Why nothing can be approved, and what to look at instead."""
    status, by = suggestion["status"], suggestion["decided_by"]
    ended = {"refused", "superseded", "withdrawn"}
    why = f": {_last_note(suggestion)}" if status in ended else f" by {by}" if by else ""
    return f"{suggestion['id']} is {status}{why}; `flettner suggestions --status open` lists what is open"


def _last_note(suggestion: Json) -> str:
    notes = suggestion["notes"]
    return str(notes[-1]) if notes else "no reason given"


def _abort(args: argparse.Namespace, daemon: ApiClient) -> int:
    rollout = _find_abortable(daemon, args.target)
    if rollout is None:
        detail = f"{args.target} has no rollout to abort; `flettner undo` takes back a promoted one"
        raise RefusedError({"status": 409, "detail": detail})
    answer = daemon.post(path("rollouts", rollout, "abort"), {"reason": args.reason})
    if args.wait:
        return wait_for_rollout(args, daemon, rollout, "rolled_back")
    state = "is rolled back" if answer["outcome"] == "rolled_back" else "is being rolled back"
    return print_answer(args, answer, f"{escape_text(answer['id'])} {state}")


def _find_abortable(daemon: ApiClient, name: str) -> str | None:
    """The latest rollout of the target, or the rollout that is named itself; None: the target has none."""
    try:
        rollout = daemon.get(path("targets", name))["rollout"]
    except RefusedError as no_target:
        try:
            return str(daemon.get(path("rollouts", name))["id"])
        except RefusedError:
            raise no_target from None
    return None if rollout is None else str(rollout)


def _pause_or_resume(args: argparse.Namespace, daemon: ApiClient) -> int:
    query = "?maintenance=true" if getattr(args, "maintenance", False) else ""
    answer = daemon.post(path("targets", args.target, args.command) + query)
    state = "in maintenance" if answer["maintenance"] else "paused" if answer["paused"] else "not paused"
    return print_answer(args, answer, f"{escape_text(answer['name'])} is {state}")


def _reload(args: argparse.Namespace, daemon: ApiClient) -> int:
    answer = daemon.post("/v1/reload")
    return print_answer(args, answer, describe_reload(answer))


def describe_reload(answer: Json) -> str:
    """A line for each changed key and for each target whose rollout goes on."""
    lines = [f"{c['key']}: {_value(c['before'])} -> {_value(c['after'])}" for c in answer["changes"]]
    lines += [
        f"{name}: comes into force after the running rollout, which goes on as it was approved"
        for name in answer["waiting"]
    ]
    return "\n".join(map(escape_text, lines)) or "nothing has changed"


def _value(value: object) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)

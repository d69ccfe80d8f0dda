"""The commands that talk to a running daemon: what it does, and what a person says to it."""

import argparse
import re
import sys
import time
from typing import get_args
from urllib.parse import urlencode

from agent.api.client import ApiClient, Json, RefusedError
from agent.cli.dispatch import Subparsers
from agent.cli.exits import NO, USAGE
from agent.cli.remote_command import add, path, show
from agent.cli.rollouts import waited
from agent.cli.watch import looked
from agent.domain.state import SuggestionStatus
from agent.terminal.tables import (
    change,
    complain,
    outage_s,
    safe,
    status_text,
    suggestion_text,
    suggestions_text,
    target_line,
)
from vllm_facts.errors import FlagError
from vllm_facts.flags import setting_of

STATUSES: tuple[str, ...] = get_args(SuggestionStatus)
POLL_S = 0.5


def register(subparsers: Subparsers) -> None:
    status = add(subparsers, "status", _status, "every target and how it is")
    status.add_argument("target", nargs="?", metavar="TARGET", help="only this one")
    status.add_argument("--watch", action="store_true", help="until Ctrl-C or q, as it changes")

    suggestions = add(subparsers, "suggestions", _suggestions, "what is suggested, newest first")
    suggestions.add_argument("--status", choices=STATUSES, help="only these")
    suggestions.add_argument("--target", metavar="TARGET", help="only of this target")

    approve = add(subparsers, "approve", _approve, "approve a suggestion, after looking at it")
    approve.add_argument("id", metavar="SUGGESTION", help="as `trimtab suggestions` shows it")
    approve.add_argument(
        "--digest", type=_digest, help="approve only what has this digest; without it you are asked"
    )
    approve.add_argument("--comment", default="", help="is kept in the audit")
    approve.add_argument(
        "--wait", action="store_true", help="until its rollout is over; 1: it was taken back"
    )

    deny = add(subparsers, "deny", _deny, "deny a suggestion")
    deny.add_argument("id", metavar="SUGGESTION", help="as `trimtab suggestions` shows it")
    deny.add_argument("--reason", type=_said, required=True, help="is kept in the audit")

    propose = add(
        subparsers, "propose", _propose, "ask for a change; it waits for its approval like any other"
    )
    propose.add_argument("target", metavar="TARGET", help="its name")
    propose.add_argument(
        "knobs",
        nargs="+",
        type=_knob,
        metavar="KNOB=VALUE",
        help="max_num_seqs=128; null: vLLM's own default",
    )
    propose.add_argument("--reason", type=_said, required=True, help="is kept in the audit")

    abort = add(subparsers, "abort", _abort, "take the target's rollout back")
    abort.add_argument("target", metavar="TARGET", help="its name")
    abort.add_argument(
        "--reason", type=_said, default="aborted from the command line", help="is kept in the audit"
    )
    abort.add_argument("--wait", action="store_true", help="until it is over; 1: it was promoted after all")

    for verb, says in (("pause", "start nothing new on a target"), ("resume", "end a pause")):
        add(subparsers, verb, _pause_or_resume, says).add_argument(
            "target", metavar="TARGET", help="its name"
        )


def _digest(text: str) -> str:
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no digest; `trimtab suggestions --json` tells it")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("says nothing; a person will look for it in the audit")
    return text


def _knob(text: str) -> tuple[str, object]:
    """`max_num_seqs=128`, and as vLLM writes it: `--max-num-seqs=128`."""
    knob, equals, given = text.partition("=")
    knob = knob.strip().removeprefix("--").replace("-", "_")
    if not equals or re.fullmatch(r"[a-z][a-z0-9_]*", knob) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not KNOB=VALUE, such as max_num_seqs=128")
    words = {"null": None, "true": True, "false": False}
    if given in words:
        return knob, words[given]
    try:  # as vLLM reads it: 64k is 64000 where the flag takes sizes
        flags = setting_of(
            ["python", "-m", "vllm.entrypoints.openai.api_server", f"--{knob.replace('_', '-')}={given}"]
        )
    except FlagError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return knob, flags.get(knob, given)


def _status(args: argparse.Namespace, daemon: ApiClient) -> int:
    return looked(args, daemon, "targets", args.target, key="name", text=status_text, line=target_line)


def _suggestions(args: argparse.Namespace, daemon: ApiClient) -> int:
    chosen = {name: getattr(args, name) for name in ("status", "target") if getattr(args, name)}
    answer = daemon.get("/v1/suggestions" + (f"?{urlencode(chosen)}" if chosen else ""))
    return show(args, answer, suggestions_text(answer["suggestions"]))


def _approve(args: argparse.Namespace, daemon: ApiClient) -> int:
    digest = args.digest
    if digest is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            complain(
                "nobody is at this terminal to look at the suggestion; name what was looked at with"
                f" --digest (`trimtab suggestions --json` tells it for {args.id})"
            )
            return USAGE
        suggestion = _checked(daemon, daemon.get(path("suggestions", args.id)))
        sys.stderr.write(suggestion_text(suggestion))
        if suggestion["status"] == "refused":
            raise RefusedError(
                {"status": 409, "detail": f"{args.id} cannot be done: {_last_note(suggestion)}"}
            )
        outage = f", with an outage of about {outage_s(suggestion):.0f} s" if outage_s(suggestion) else ""
        if not _is_yes(f"Approve this change{outage}? [y/N] "):
            complain("nothing was approved")
            return NO
        digest = suggestion["digest"]
    body = {"digest": digest, "comment": args.comment}
    answer = daemon.post(path("suggestions", args.id, "approve"), body)
    if args.wait:
        return waited(args, daemon, _rollout_of(daemon, answer), "promoted")
    return show(args, answer, f"{safe(answer['id'])} is approved: {change(answer)}")


def _rollout_of(daemon: ApiClient, suggestion: Json) -> str:
    """The rollout that an approval began: it is there once the approval was answered."""
    answer = daemon.get(f"/v1/rollouts?{urlencode({'target': suggestion['target']})}")
    for rollout in answer["rollouts"]:
        if rollout["suggestion"] == suggestion["id"]:
            return str(rollout["id"])
    raise RefusedError({"status": 409, "detail": f"{suggestion['id']} is approved, but no rollout has begun"})


def _is_yes(question: str) -> bool:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _deny(args: argparse.Namespace, daemon: ApiClient) -> int:
    answer = daemon.post(path("suggestions", args.id, "deny"), {"reason": args.reason})
    return show(args, answer, f"{safe(answer['id'])} is denied")


def _propose(args: argparse.Namespace, daemon: ApiClient) -> int:
    to = dict(args.knobs)
    if len(to) < len(args.knobs):
        complain("a knob is named more than once; name it once")
        return USAGE
    asked = daemon.post(path("targets", args.target, "suggestions"), {"to": to, "reason": args.reason})
    answer = _checked(daemon, asked)
    name = safe(answer["id"])
    if answer["status"] == "open":
        ending = f"It waits for its approval: `trimtab approve {name}`"
        return show(args, answer, suggestion_text(answer) + ending)
    show(args, answer, suggestion_text(answer))
    why = f"cannot be done: {_last_note(answer)}" if answer["status"] == "refused" else "is not open any more"
    complain(f"{name} {why}")
    return NO


def _checked(daemon: ApiClient, suggestion: Json) -> Json:
    """The suggestion once the engine has said what would come of it: in a second, or a minute with vLLM."""
    if suggestion["status"] == "checking":
        sys.stderr.write(f"{safe(suggestion['id'])} is checked before anything is touched ...\n")
    while suggestion["status"] == "checking":
        time.sleep(POLL_S)
        suggestion = daemon.get(path("suggestions", suggestion["id"]))
    return suggestion


def _last_note(suggestion: Json) -> str:
    notes = suggestion["notes"]
    return str(notes[-1]) if notes else "no reason was given"


def _abort(args: argparse.Namespace, daemon: ApiClient) -> int:
    rollout = daemon.get(path("targets", args.target))["rollout"]
    if rollout is None:
        raise RefusedError({"status": 409, "detail": f"{args.target} has no rollout to abort"})
    answer = daemon.post(path("rollouts", rollout, "abort"), {"reason": args.reason})
    if args.wait:
        return waited(args, daemon, rollout, "rolled_back")
    is_over = answer["outcome"] == "rolled_back"
    return show(args, answer, f"{safe(answer['id'])} {'is' if is_over else 'is being'} taken back")


def _pause_or_resume(args: argparse.Namespace, daemon: ApiClient) -> int:
    answer = daemon.post(path("targets", args.target, args.command))
    return show(args, answer, f"{safe(answer['name'])} is {'paused' if answer['paused'] else 'not paused'}")

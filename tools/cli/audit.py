"""`flettner audit`: read, verify and export the journal, with or without a daemon."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flettner.agent.audit import checkpoints
from flettner.agent.audit.anchors import find_anchors
from flettner.agent.audit.chain import Head, Verification
from flettner.agent.audit.continuity import verify_in_place
from flettner.agent.audit.records import BrokenLineError, JournalRecord, parse_record
from flettner.agent.audit.segments import open_files
from flettner.agent.domain.amounts import describe_amount
from flettner.agent.domain.errors import JournalError
from flettner.agent.telemetry.journald import encode_record
from flettner.primitives.wall_clock import utc_now
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.terminal.capabilities import BOLD, DIM, RED, add_colour, terminal_width
from flettner.tools.terminal.cell_width import wrap_sentence
from flettner.tools.terminal.messages import complain
from flettner.tools.terminal.values import escape_text, format_time, format_value

DEFAULT_STATE_DIR = Path("/var/lib/flettner")
JOURNAL = "audit.jsonl"
INDENT = " " * 7  # width of an entry's number
OK, TAMPERED = 0, 1
_PIN = re.compile(r"([1-9][0-9]{0,14}):([0-9a-f]{64})")


def add_audit(subparsers: Subparsers) -> None:
    audit = add_command(subparsers, "audit", "read, verify and export the audit journal, without the daemon")
    commands = audit.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = add_command(commands, "show", "list the entries, oldest first")
    show.add_argument("--action", help="only entries with this action or prefix (`rollout.`)")
    show.add_argument("--op", metavar="ROLLOUT", help="only entries of this rollout")
    show.add_argument(
        "--limit", type=_parse_count, metavar="N", help="at most N entries; prints how to continue"
    )
    show.add_argument("--json", action="store_true", help="print complete entries as one JSON array")
    show.set_defaults(run=_show)
    check = _add_verify(commands)
    export = add_command(commands, "export", "write the entries to stdout for other tools")
    export.add_argument(
        "--format",
        choices=("jsonl", "journald"),
        default="jsonl",
        help="jsonl: the original bytes, verifiable elsewhere (default); journald: the Journal Export Format "
        "for systemd-journal-remote",
    )
    export.set_defaults(run=_export)
    key = add_command(
        commands, "key", "create the key that signs checkpoints if there is none; print its public key"
    )
    key.add_argument("--json", action="store_true", help="print its id, file and public key as JSON")
    key.set_defaults(run=_key)
    for command in (show, export):
        _add_range(command)
    for command in (show, check, export, key):
        command.add_argument(
            "--state-dir",
            type=Path,
            default=DEFAULT_STATE_DIR,
            metavar="DIR",
            help="[agent] state_dir of the config; default: %(default)s",
        )


def _add_verify(commands: Subparsers) -> argparse.ArgumentParser:
    check = add_command(
        commands,
        "verify",
        "verify the hash chain of the audit journal",
        "Exit status 0: the chain is intact, possibly with an unfinished last line after a crash; 1: it is "
        "broken, and the first bad entry is named; 2: the journal cannot be read. docs/audit.md lists the "
        "changes that only --key, --pin or --anchor detects.",
    )
    check.add_argument(
        "--pin",
        type=_parse_pin,
        action="append",
        default=[],
        metavar="SEQ:HASH",
        help="a head recorded elsewhere; detects a removed end and a rewritten journal; can be repeated",
    )
    check.add_argument(
        "--anchor",
        metavar="FILE",
        help="the daemon's log, or another file with anchors, each a pin; - reads stdin, for example from "
        "`journalctl -u flettner -o json`",
    )
    check.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="public keys from `flettner audit key`; verifies the signed checkpoints",
    )
    check.add_argument("--json", action="store_true", help="print the result as JSON")
    check.set_defaults(run=_verify)
    return check


def _add_range(command: argparse.ArgumentParser) -> None:
    """Add the options that choose entries."""
    command.add_argument("--target", metavar="TARGET", help="only entries of this target")
    command.add_argument(
        "--after", type=int, default=0, metavar="SEQ", help="only entries with a larger number"
    )
    command.add_argument(
        "--since",
        type=_parse_time,
        metavar="TIME",
        help="only entries at or after this time (ISO 8601, UTC)",
    )
    command.add_argument("--until", type=_parse_time, metavar="TIME", help="only entries before this time")


def _show(args: argparse.Namespace) -> int:
    shown, unreadable, more = 0, 0, 0
    for where, line in read_lines(find_journal(args.state_dir), args.after):
        try:
            record = parse_record(line)
        except BrokenLineError as error:
            unreadable += 1
            complain(f"{where}: {error}")
            continue
        if not _matches(record, args):
            continue
        if shown == args.limit:
            sys.stderr.write(f"more: --after {more}\n")
            break
        if args.json:
            sys.stdout.write((",\n" if shown else "[\n") + json.dumps(record, ensure_ascii=False))
        else:
            sys.stdout.write(_format_entry(record))
        shown, more = shown + 1, record["seq"]
    if args.json:
        sys.stdout.write("\n]\n" if shown else "[]\n")
    elif not shown and not unreadable:
        sys.stdout.write("no entries\n")
    return TAMPERED if unreadable else OK


def _matches(record: JournalRecord, args: argparse.Namespace) -> bool:
    return (
        _is_in_range(record, args)
        and args.op in (None, record["op_id"])
        and (args.action is None or record["action"].startswith(args.action))
    )


def _is_in_range(record: JournalRecord, args: argparse.Namespace) -> bool:
    return (
        record["seq"] > args.after
        and args.target in (None, record["target"])
        and (args.since is None or args.since <= datetime.fromisoformat(record["ts"]))
        and (args.until is None or datetime.fromisoformat(record["ts"]) < args.until)
    )


def _format_entry(record: JournalRecord) -> str:
    """Format the time, action and actor; below them the reason, the change, the evidence and the error."""
    actor, error = record["actor"], record["error"]
    by = f"by {actor['id']}" if actor["kind"] == "person" else f"by {actor['kind']} {actor['id']}"
    what = add_colour(escape_text(record["action"]), RED if error else BOLD)
    head = [
        f"{record['seq']:>5}",
        format_time(record["ts"]),
        escape_text(record["target"]),
        what,
        escape_text(by),
    ]
    more = [
        escape_text(record["why"]),
        _format_change(
            record["before"], {name: item for name, item in record["after"].items() if name != "request"}
        ),
        "; ".join(f"{e['metric']} {describe_amount(e['value'], e['unit'])}" for e in record["evidence"]),
        f"error: {error}" if error else "",
    ]
    below = (
        line
        for text in more
        if text
        for line in wrap_sentence(f"{INDENT}{escape_text(text)}", terminal_width(), INDENT)
    )
    return "\n".join(["  ".join(filter(None, head)), *(add_colour(line, DIM) for line in below)]) + "\n"


def _format_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """`max_num_seqs 4 -> 8` for each changed value, also in nested tables."""
    parts = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            parts.append(_format_change(old, new))
        elif name not in before:
            parts.append(f"{name} {_format_value(new)}" if new != "" else "")
        elif old != new and name in after:
            parts.append(f"{name} {_format_value(old)} -> {_format_value(new)}")
    return ", ".join(filter(None, parts))


def _format_value(given: object) -> str:
    if isinstance(given, dict):
        return " ".join(f"{name}={format_value(item)}" for name, item in given.items())
    return format_value(given)


def _verify(args: argparse.Namespace) -> int:
    keys = checkpoints.load_public_keys(args.key) if args.key else None
    anchors = _read_anchors(args.anchor) if args.anchor else frozenset()
    result = verify_in_place(
        find_journal(args.state_dir), now=utc_now(), pins=args.pin, anchors=anchors, keys=keys
    )
    if args.json:
        text = json.dumps(asdict(result), indent=2)
    elif result.ok:
        text = "\n".join(
            [f"ok: {result.entries} entries, head {result.head.seq}:{result.head.hash}", *_notes(result)]
        )
    else:
        bad = f"bad: entry {result.first_bad} ({result.where}): {escape_text(result.problem)}"
        text = f"{add_colour(bad, RED)}\nthe {result.entries} entries before it are intact"
    sys.stdout.write(f"{text}\n")
    return OK if result.ok else TAMPERED


def _read_anchors(name: str) -> frozenset[Head]:
    """Read the anchors of a file, or of stdin. Raises JournalError."""
    try:
        if name == "-":
            anchors = find_anchors(sys.stdin)
        else:
            with Path(name).open(encoding="utf-8", errors="replace") as lines:
                anchors = find_anchors(lines)
    except OSError as error:
        raise JournalError(f"--anchor {name}: cannot be read: {error.strerror}") from error
    if not anchors:
        raise JournalError(f"--anchor {name}: holds no anchor: give the daemon's log, or lines with SEQ:HASH")
    return frozenset(anchors)


def _notes(result: Verification) -> Iterator[str]:
    if result.first > 1:
        yield f"note: entries before {result.first} were removed at the end of their retention"
    if result.signed:
        yield f"signed up to entry {result.signed}, by {result.checkpoints} checkpoints"
    elif result.checkpoints:
        yield f"note: {result.checkpoints} signed checkpoints were not verified: pass the public --key"
    if result.pinned:
        yield f"confirmed up to entry {result.pinned} by pins or anchors"
    if result.torn_tail:
        yield (
            f"note: the last line is unfinished ({result.torn_tail} bytes) after a crash, or a daemon is "
            f"writing it now; the next start moves it aside and records that in the journal"
        )


def _export(args: argparse.Namespace) -> int:
    chosen = args.format != "jsonl" or args.target or args.since or args.until
    for where, line in read_lines(find_journal(args.state_dir), args.after):
        if not chosen and not args.after:
            sys.stdout.buffer.write(line + b"\n")
            continue
        try:
            record = parse_record(line)
        except BrokenLineError as error:
            raise JournalError(f"{where}: {error}") from error
        if _is_in_range(record, args):
            sys.stdout.buffer.write(line + b"\n" if args.format == "jsonl" else encode_record(record))
    sys.stdout.buffer.flush()
    return OK


def _key(args: argparse.Namespace) -> int:
    path = find_journal(args.state_dir).with_name(checkpoints.KEY_FILE)
    signer = checkpoints.load_signer(path) if path.exists() else checkpoints.create_signer(path)
    if args.json:
        sys.stdout.write(
            json.dumps({"id": signer.id, "file": str(path), "public": signer.public_pem()}) + "\n"
        )
        return OK
    sys.stdout.write(signer.public_pem())
    sys.stderr.write(f"{path}: key {signer.id}; keep the public key above on another host\n")
    return OK


def find_journal(state_dir: Path) -> Path:
    """The journal in a state directory. Raises JournalError if that is not there, or closed to this user."""
    try:
        os.stat(state_dir / ".")  # noqa: PTH116 - pathlib drops the dot, which asks for the folder's content
    except PermissionError as error:
        raise JournalError(
            f"{state_dir}: cannot be read: {error.strerror}; run this as the user of the daemon, or as root"
        ) from error
    except OSError as error:
        raise JournalError(
            f"{state_dir}: cannot be read: {error.strerror}; give --state-dir, the [agent] state_dir of the "
            "config"
        ) from error
    return state_dir / JOURNAL


def read_lines(path: Path, after: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield every complete line with its file and line number, in the files with entries after `after`."""
    try:
        for name, file, _ in open_files(path, after):
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield f"{name}, line {number}", line[:-1]
    except OSError as error:
        raise JournalError(f"{error.filename or path}: cannot be read: {error.strerror}") from error


def _parse_pin(text: str) -> Head:
    match = _PIN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not SEQ:HASH as `audit verify` prints it")
    return Head(seq=int(match[1]), hash=match[2])


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:15])):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of entries")
    return int(text[:15])


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-11-20 or 2026-11-20T12:00Z"
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)

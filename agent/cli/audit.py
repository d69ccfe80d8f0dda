"""`trimtab audit`: read, verify and export the journal, with or without a daemon."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.chain import Head, verify
from agent.cli import Subparsers
from agent.cli.tables import moment, safe, value
from agent.errors import JournalError
from agent.records import BrokenLineError, Record, parse

DEFAULT_STATE_DIR = Path("/var/lib/trimtab")
JOURNAL = "audit.jsonl"
OK, TAMPERED = 0, 1  # 2: unreadable, as for every command
_PIN = re.compile(r"([1-9][0-9]{0,14}):([0-9a-f]{64})")
_RED, _DIM, _BOLD = 31, 2, 1


def register(subparsers: Subparsers) -> None:
    audit = subparsers.add_parser(
        "audit", help="what happened and why; works without the daemon", description=__doc__
    )
    commands = audit.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = commands.add_parser("show", help="the entries, oldest first")
    show.add_argument("--target", help="only of this target")
    show.add_argument("--action", help="only these: an action, or its beginning (`rollout.`)")
    show.add_argument("--op", metavar="ID", help="only of this rollout")
    show.add_argument("--after", type=int, default=0, metavar="SEQ", help="only entries with a larger number")
    show.add_argument("--json", action="store_true", help="whole entries as one JSON array")
    show.set_defaults(run=_show)

    check = commands.add_parser(
        "verify",
        help="is it as it was written?",
        description="Exit status 0: yes; 1: no, and the first bad entry is named; 2: it cannot be read.",
    )
    check.add_argument(
        "--pin",
        type=_pin,
        metavar="SEQ:HASH",
        help="a head that was noted elsewhere: shows that the end was cut off, or all of it written anew",
    )
    check.add_argument("--json", action="store_true", help="the finding as JSON")
    check.set_defaults(run=_verify)

    export = commands.add_parser("export", help="the entries, byte for byte, so that others can verify them")
    export.add_argument("--format", choices=("jsonl",), default="jsonl")
    export.set_defaults(run=_export)

    for command in (show, check, export):
        command.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR")


def _show(args: argparse.Namespace) -> int:
    first, unreadable = True, 0
    for seq, line in _lines(args.state_dir / JOURNAL):
        try:
            record = parse(line)
        except BrokenLineError as error:
            unreadable += 1
            sys.stderr.write(f"trimtab: line {seq}: {safe(error)}\n")
            continue
        if not _wanted(record, args):
            continue
        if args.json:
            sys.stdout.write(("[\n" if first else ",\n") + json.dumps(record, ensure_ascii=False))
        else:
            sys.stdout.write(_told(record))
        first = False
    if args.json:
        sys.stdout.write("[]\n" if first else "\n]\n")
    elif first and not unreadable:
        sys.stdout.write("no entries\n")
    return TAMPERED if unreadable else OK


def _wanted(record: Record, args: argparse.Namespace) -> bool:
    return (
        record["seq"] > args.after
        and args.target in (None, record["target"])
        and args.op in (None, record["op_id"])
        and (args.action is None or record["action"].startswith(args.action))
    )


def _told(record: Record) -> str:
    """One entry for a person: when, what, who; then why, the change, what went wrong."""
    who, error = record["actor"], record["error"]
    actor = f"by {who['id']}" if who["kind"] == "person" else f"by {who['kind']} {who['id']}"
    what = _coloured(safe(record["action"]), _RED if error else _BOLD)
    head = [f"{record['seq']:>5}", moment(record["ts"]), safe(record["target"]), what, safe(actor)]
    more = [
        safe(record["why"]),
        _change(record["before"], record["after"]),
        "; ".join(f"{e['metric']} {e['value']:.4g} {e['unit']}".strip() for e in record["evidence"]),
        f"error: {error}" if error else "",
    ]
    lines = ["  ".join(filter(None, head)), *(f"       {safe(line)}" for line in more if line)]
    return "\n".join([lines[0], *(_coloured(line, _DIM) for line in lines[1:])]) + "\n"


def _change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """`max_num_seqs 4 -> 8` for what is not as it was, one level into tables."""
    parts = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            parts.append(_change(old, new))
        elif name not in before:
            parts.append(f"{name} {_shown(new)}")
        elif old != new and name in after:
            parts.append(f"{name} {_shown(old)} -> {_shown(new)}")
    return ", ".join(filter(None, parts))


def _shown(given: object) -> str:
    if isinstance(given, dict):
        return " ".join(f"{name}={value(item)}" for name, item in given.items())
    return value(given)


def _verify(args: argparse.Namespace) -> int:
    found = verify(args.state_dir / JOURNAL, pin=args.pin)
    if args.json:
        text = json.dumps(asdict(found), indent=2)
    elif found.ok:
        text = f"ok: {found.entries} entries, head {found.head.seq}:{found.head.hash}"
        if found.torn_tail:
            text += (
                f"\nnote: the last line is unfinished ({found.torn_tail} bytes): a crash, or a daemon "
                f"that is writing now; the next start sets it aside and says so in the journal"
            )
    else:
        bad = f"bad: entry {found.first_bad} (line {found.first_bad}): {safe(found.problem)}"
        text = f"{_coloured(bad, _RED)}\nthe {found.entries} entries before it are as they were written"
    sys.stdout.write(f"{text}\n")
    return OK if found.ok else TAMPERED


def _export(args: argparse.Namespace) -> int:
    for _, line in _lines(args.state_dir / JOURNAL):
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
    return OK


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every finished line with its number."""
    try:
        with path.open("rb") as file:
            for seq, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield seq, line[:-1]
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from error


def _pin(text: str) -> Head:
    found = _PIN.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not SEQ:HASH as `audit verify` prints it")
    return Head(seq=int(found[1]), hash=found[2])


def _coloured(text: str, code: int) -> str:
    """Coloured where somebody can see it (no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"

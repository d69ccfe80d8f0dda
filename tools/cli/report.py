"""`flettner report`: a page about one rollout for people who approve changes elsewhere, sealed."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import Head
from flettner.agent.audit.history import History
from flettner.agent.audit.records import JournalRecord, parse_record, parse_state
from flettner.agent.audit.report_seal import find_problem, is_signed, seal
from flettner.agent.domain.errors import ConfigError
from flettner.agent.observe.spending import count_gpus
from flettner.primitives.wall_clock import utc_now
from flettner.tools.cli.audit import DEFAULT_STATE_DIR, find_journal, read_lines
from flettner.tools.cli.change_report import Change, write_page
from flettner.tools.cli.dispatch import Subparsers, add_command, find_version
from flettner.tools.cli.exits import NO, OK
from flettner.tools.cli.predict import parse_price
from flettner.tools.cli.report_cost import describe_costs
from flettner.tools.terminal.messages import complain

LARGEST = 64 * 2**20


def add_report(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "report",
        "write a sealed page about one rollout: what, why, who, evidence, outcome",
        "Reads the audit journal, with or without a daemon. The page is one HTML file without scripts; its "
        "last line has its SHA-256, and a signature if the journal has a key (`flettner audit key`). Exit "
        "status of --verify: 0: the page is as it was sealed; 1: it is not.",
    )
    parser.add_argument("rollout", nargs="?", metavar="ROLLOUT", help="id of the rollout, such as chat-3")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page; default: stdout")
    parser.add_argument("--verify", type=Path, metavar="FILE", help="verify the seal of a page")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="with --verify: public keys from `flettner audit key`"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=DEFAULT_STATE_DIR,
        metavar="DIR",
        help="[agent] state_dir of the config; default: %(default)s",
    )
    parser.add_argument(
        "--gpu-hour", type=parse_price, metavar="PRICE", help="price of a GPU for an hour, for its cost"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if (args.rollout is None) == (args.verify is None):
        raise ConfigError("give a rollout to report, or --verify FILE; `flettner rollouts` lists them")
    if args.verify is not None:
        return _verify(args.verify, args.key)
    change = find_change(find_journal(args.state_dir), args.rollout)
    series = args.state_dir / change.target / "series.jsonl"
    change = replace(change, costs=describe_costs(series, change.rollout, change.gpus, args.gpu_hour))
    page = write_page(change, written_at=f"{utc_now():%Y-%m-%dT%H:%M:%SZ}", version=find_version())
    sealed = seal(page, checkpoints.find_signer(args.state_dir))
    if args.output is None:
        sys.stdout.buffer.write(sealed)
        return OK
    try:
        args.output.write_bytes(sealed)
    except OSError as error:
        raise ConfigError(f"{args.output}: cannot be written: {error.strerror}") from error
    return OK


def _verify(page: Path, key: Path | None) -> int:
    try:
        sealed = page.read_bytes()[:LARGEST]
    except OSError as error:
        raise ConfigError(f"{page}: cannot be read: {error.strerror}") from error
    if problem := find_problem(sealed, checkpoints.load_public_keys(key) if key else {}):
        complain(f"{page}: {problem}")
        return NO
    signed = "signed" if key else "unchanged; its signature was not verified: give --key"
    sys.stdout.write(f"{page}: {signed if is_signed(sealed) else 'unchanged; it is not signed'}\n")
    return OK


def find_change(journal: Path, rollout: str) -> Change:
    """Read the whole journal. Raises ConfigError without such a rollout, JournalError."""
    history, entries, head, gpus = History(), list[JournalRecord](), Head(), 0
    of_suggestion: dict[str, list[JournalRecord]] = {}
    for _, line in read_lines(journal):
        record = parse_record(line)
        head = Head(seq=record["seq"], hash=record["hash"])
        if record["op_id"] == rollout or _ends(record, rollout):
            entries.append(record)
            if (state := parse_state(record)) is not None:
                history.add_state(state)
                gpus = count_gpus(state.fleet.running, seen=0) or gpus
        elif suggestion := record["after"].get("suggestion"):
            of_suggestion.setdefault(suggestion, []).append(record)
    change_of = next(((target, each) for target, each in history.rollouts() if each.id == rollout), None)
    if change_of is None:
        raise ConfigError(f"{journal} has no rollout {rollout}; `flettner rollouts` lists them")
    target, change = change_of
    earlier = of_suggestion.get(change.suggestion.id, [])
    for record in (*earlier, *entries):
        record["state"] = None  # large, and not shown
    return Change(
        target=target,
        rollout=change,
        points=history.points(rollout),
        entries=sorted((*earlier, *entries), key=lambda record: record["seq"]),
        head=head,
        gpus=gpus,
    )


def _ends(record: JournalRecord, rollout: str) -> bool:
    """Whether it has the outcome of the rollout, which is over by then."""
    latest = (record["state"] or {}).get("rollout") or {}
    return record["action"].startswith("rollout.") and latest.get("id") == rollout

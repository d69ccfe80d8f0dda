"""`trimtab demo`: see the whole loop work on this machine before pointing it at anything that matters."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.audit.chain import verify
from agent.cli.dispatch import Subparsers
from agent.demo.setups import scene
from agent.terminal.tables import table

if TYPE_CHECKING:
    from agent.demo.scenario import DemoReport

WANTED = ("promoted", "rolled_back")


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("demo", help="the whole story on this machine")
    parser.add_argument(
        "--engine", choices=("sim", "vllm"), default="sim", help="a simulator (default), or real vLLM"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=float,
        default=10.0,
        help="seconds measured before and after each change",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Exit 0 only if all of it happened and no request was lost."""
    from agent.demo.processes import stage  # noqa: PLC0415 - brings the daemon with it, which takes half a second
    from agent.demo.scenario import DemoPrinter  # noqa: PLC0415

    began = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:5.0f} s  {line}\n")
        sys.stdout.flush()

    home = Path(tempfile.mkdtemp(prefix="trimtab-demo-"))
    with stage(home, scene(args.engine)) as staged:
        teller = DemoPrinter(stage=staged, measure_s=args.seconds, say=say)
        traffic = teller.opening()
        try:
            told = [teller.improvement(traffic), teller.harm(traffic)]
        finally:
            counts = traffic.stop()
    chain = verify(home / "state" / "audit.jsonl")
    report = {
        "engine": args.engine,
        "requests": {key: counts[key] for key in ("sent", "ok", "failed", "truncated", "aborted")},
        "rollouts": [asdict(rollout) for rollout in told],
        "audit": {"entries": chain.entries, "verified": chain.ok},
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(_text(report, told))
    lost = counts["sent"] - counts["ok"]
    happened = [rollout.outcome for rollout in told] == list(WANTED)
    sys.stdout.write(f"journal, logs and config: {home}\n")
    return 0 if happened and not lost and chain.ok else 1


def _text(report: dict[str, Any], told: "Sequence[DemoReport]") -> str:
    head = ("CHANGE", "OUTCOME", "EXPOSED", "BAD", "SECONDS", "TTFT P95 ms", "GOODPUT /s")
    rows = [
        (
            ", ".join(f"{knob} {old} -> {new}" for knob, (old, new) in rollout.knobs.items()),
            rollout.outcome.replace("_", " "),
            rollout.exposed,
            rollout.bad_exposed,
            rollout.seconds,
            f"{rollout.before['ttft_p95_ms']} -> {rollout.after['ttft_p95_ms']}",
            f"{rollout.before['goodput_rps']} -> {rollout.after['goodput_rps']}",
        )
        for rollout in told
    ]
    requests = ", ".join(f"{count} {name}" for name, count in report["requests"].items())
    audit = (
        f"{report['audit']['entries']} entries, {'verified' if report['audit']['verified'] else 'NOT WHOLE'}"
    )
    reasons = "".join(f"  {rollout.id}: {rollout.why}\n" for rollout in told)
    return f"\n{table(head, rows)}{reasons}requests: {requests}\naudit: {audit}\n"

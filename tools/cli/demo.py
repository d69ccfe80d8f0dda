"""`flettner demo`: the complete loop on this machine, with a simulated or real vLLM server."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flettner.agent.audit.chain import verify
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.demo.setups import setup_for
from flettner.tools.terminal.tables import format_table

if TYPE_CHECKING:
    from flettner.tools.demo.scenario import DemoReport

EXPECTED = ("promoted", "rolled_back")


def add_demo(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "demo",
        "run a complete demonstration on this machine",
        "Starts a server with unsuitable flags behind the proxy, promotes a better setting and rolls back a "
        "harmful one, under load.",
    )
    parser.add_argument(
        "--engine", choices=("sim", "vllm"), default="sim", help="the simulator (default) or real vLLM"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds to measure before and after each change; default: 10",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to this file")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Exit 0 if both rollouts had the expected outcome and no request was lost."""
    from flettner.tools.demo.processes import start_daemon  # noqa: PLC0415 - imports the daemon, half a second
    from flettner.tools.demo.scenario import DemoScenario  # noqa: PLC0415

    began = time.monotonic()

    def log(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:5.0f} s  {line}\n")
        sys.stdout.flush()

    home = Path(tempfile.mkdtemp(prefix="flettner-demo-"))
    with start_daemon(home, setup_for(args.engine)) as processes:
        scenario = DemoScenario(processes=processes, measure_s=args.seconds, log=log)
        traffic = scenario.start_traffic()
        try:
            reports = [scenario.improve(traffic), scenario.harm(traffic)]
        finally:
            counts = traffic.stop()
    chain = verify(home / "state" / "audit.jsonl")
    report = {
        "engine": args.engine,
        "requests": {key: counts[key] for key in ("sent", "ok", "failed", "truncated", "aborted")},
        "rollouts": [asdict(rollout) for rollout in reports],
        "audit": {"entries": chain.entries, "verified": chain.ok},
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(_format(report, reports))
    lost = counts["sent"] - counts["ok"]
    as_expected = [rollout.outcome for rollout in reports] == list(EXPECTED)
    sys.stdout.write(f"journal, logs and config: {home}\n")
    return 0 if as_expected and not lost and chain.ok else 1


def _format(report: dict[str, Any], reports: "Sequence[DemoReport]") -> str:
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
        for rollout in reports
    ]
    requests = ", ".join(f"{count} {name}" for name, count in report["requests"].items())
    result = "verified" if report["audit"]["verified"] else "VERIFICATION FAILED"
    audit = f"{report['audit']['entries']} entries, {result}"
    reasons = "".join(f"  {rollout.id}: {rollout.why}\n" for rollout in reports)
    return f"\n{format_table(head, rows)}{reasons}requests: {requests}\naudit: {audit}\n"

"""`flettner model` and `flettner trace`: what the performance model has learned of a target."""

import argparse
import sys

from flettner.agent.api.client import ApiClient, Json
from flettner.tools.cli.dispatch import Subparsers
from flettner.tools.cli.exits import OK
from flettner.tools.cli.remote_command import add_remote_command, path, print_answer
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import format_latency, format_time

UNITS = {
    "step_us": "each step",
    "token_us": "each token above the knee",
    "sequence_us": "each sequence",
    "kv_read_us": "each token of KV cache that decoding reads",
    "attention_us": "each pair of prompt token and context token",
}
CHECKED = {
    "attainment": "requests within the objectives",
    "ttft_p90_s": "TTFT, 90 %",
    "itl_p90_s": "time between tokens, 90 % of requests",
}
SOURCES = {"records": "the proxy's records", "histograms": "vLLM's histograms: lengths are drawn from them"}


def add_model(subparsers: Subparsers) -> None:
    model = add_remote_command(
        subparsers,
        "model",
        _model,
        "show what the performance model has learned of a target",
        "Shows the law of step time, its errors on the last minutes, its predictions of rollouts beside the "
        "measurements, and the recorded load; without an accepted law, the reason.",
    )
    model.add_argument("target", metavar="TARGET", help="name of the target")


def add_trace(subparsers: Subparsers) -> None:
    trace = add_remote_command(
        subparsers,
        "trace",
        _trace,
        "write the recorded load of a target as JSON lines",
        "Arrival times and token counts of one server's requests, for the option --trace of "
        "`flettner predict` and `flettner tune`. Contains no text of requests.",
    )
    trace.add_argument("target", metavar="TARGET", help="name of the target")
    trace.add_argument(
        "--minutes", type=int, default=15, metavar="N", help="only the last N minutes, 1 to 15; default: 15"
    )


def _model(args: argparse.Namespace, daemon: ApiClient) -> int:
    answer = daemon.get(path("targets", args.target, "model"))
    return print_answer(args, answer, model_text(answer))


def _trace(args: argparse.Namespace, daemon: ApiClient) -> int:
    sys.stdout.write(daemon.get_text(f"{path('targets', args.target, 'trace')}?minutes={args.minutes}"))
    return OK


def model_text(answer: Json) -> str:
    parts = [
        _law_text(answer),
        _check_text(answer["check"]),
        _record_text(answer["record"]),
        _load_text(answer),
    ]
    return "\n".join(part for part in parts if part)


def _law_text(answer: Json) -> str:
    law = answer["law"]
    if law is None:
        return format_sentence(f"No law of step time is in force: {answer['why_no_law']}.")
    head = (
        f"Law of step time, fitted to {answer['windows']} windows of steps ({answer['law_source']}) until "
        f"{format_time(answer['at'])}; knee at {law['knee']:g} tokens:"
    )
    rows = [
        (
            what,
            f"{_format_us(coefficient['value'])} µs",
            f"{_format_us(coefficient['low'])} to {_format_us(coefficient['high'])} µs",
        )
        for name, what in UNITS.items()
        if (coefficient := law["coefficients"][name])["value"] or coefficient["high"]
    ]
    return format_sentence(head) + "\n" + format_table(("time of", "law", "80 % of laws"), rows)


def _format_us(value: float) -> str:
    """Microseconds, rounded, without a power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits say enough


def _check_text(check: Json) -> str:
    count = len(check["itl_errors"])
    if not count:
        return ""
    rows = [
        (
            title,
            "  ".join(f"{error:+.0%}" for error in check[f"{name}_errors"]),
            f"{check[f'{name}_limit']:.0%}",
        )
        for name, title in (("itl", "time between tokens, mean"), ("ttft", "TTFT, 90 %"))
    ]
    head = (
        f"Errors of the predictions of the last {count} windows of {check['window_s']:g} s, the latest last:"
    )
    return format_sentence(head) + "\n" + format_table(("", "errors", "limit of their mean size"), rows)


def _record_text(record: Json) -> str:
    """Format how often the band of each number held, and the mean error."""
    rows = [
        (title, f"{record['coverage'][name]:.0%}", _bias(name, record["bias"][name]))
        for name, title in CHECKED.items()
        if name in record["coverage"]
    ]
    if not rows:
        return ""
    head = format_sentence(
        f"Predictions beside what was measured while new servers were held, by rollout "
        f"({len(record['rollouts'])}); bands shall hold {record['bands_hold']:.0%}:"
    )
    shown = head + "\n" + format_table(("", "inside the band", "mean error"), rows)
    if record["dropped_at"] is None:
        return shown
    return f"{shown}\n" + format_sentence(
        f"Last drop of a law: {format_time(record['dropped_at'])}, as {record['dropped']}."
    )


def _bias(name: str, error: float) -> str:
    return f"{error:+.0%}" if name.endswith("_s") else f"{100 * error:+.1f} points"


def _load_text(answer: Json) -> str:
    load = answer["load"]
    if load is None:
        return format_sentence("No request is recorded yet.")
    servers = "" if load["servers"] == 1 else f", one of {load['servers']} servers"
    cache = f"; KV cache of {answer['kv_tokens']:,} tokens" if answer["kv_tokens"] else ""
    return format_sentence(
        f"Trace{servers}: {load['requests']:,} requests in {load['seconds']:,.0f} s "
        f"({load['rate_rps']:.2f} a second), on average {load['prompt_tokens']:,.0f} prompt and "
        f"{load['output_tokens']:,.0f} output tokens, {load['cached_share']:.0%} of the prompts cached; from "
        f"{SOURCES[load['counts_from']]}{cache}; {format_latency(answer['outside_s'])} of a TTFT pass "
        "outside the engine."
    )

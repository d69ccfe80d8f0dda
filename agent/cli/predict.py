"""`trimtab predict`: what a command would do to a recorded load; no server is needed."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent.advisor.case_options import add_options, build_deployment, read_log
from agent.advisor.objective_options import SHARE, parse_objective
from agent.cli.dispatch import Subparsers, add_command
from agent.cli.predict_target import predict_target
from agent.cli.remote_command import add_remote_options
from agent.domain.errors import ConfigError
from vllm_facts.errors import FlagError
from vllm_facts.shell_command.serve_command import parse_command

if TYPE_CHECKING:
    from performance_model.outcome import Goals

_MAX_TRACE = 256 * 2**20
_MOST_TIMES = 64.0


def add_predict(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "predict",
        "predict the latencies of a vllm serve command for recorded requests",
        "The time of a step comes from --law, from --log of a server that ran with "
        "--enable-logging-iteration-details, or from the data sheet of --gpu, with wide bands. Without "
        "--trace the daemon predicts, with what it has learnt of TARGET; nothing is changed. Exit status "
        "0: predicted; 2: an input cannot be used.",
        usage="trimtab predict --trace FILE [options] -- vllm serve MODEL [flags]\n"
        "       trimtab predict TARGET [KNOB=VALUE …] [rate=xN] [prompt=xN] [--json]",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded requests, as JSON lines")
    parser.add_argument("--law", type=Path, metavar="FILE", help="a measured law of step time, as JSON")
    parser.add_argument(
        "--kv-tokens", type=int, metavar="N", help="size of the KV cache; default: from --log, or estimated"
    )
    for option, what in (
        ("ttft", "time to first token"),
        ("itl", "time between tokens"),
        ("e2e", "whole request"),
    ):
        parser.add_argument(
            f"--{option}",
            metavar="T",
            help=f"objective for the {what} of 95 %% of the requests, such as 500ms",
        )
    parser.add_argument("--rate", metavar="X", help="how many times as fast the requests come, such as 1.5")
    parser.add_argument("--prompt", metavar="X", help="how many times as long the prompts are, such as 2")
    parser.add_argument("--search", action="store_true", help="look for better settings near this one")
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- vllm serve MODEL …",
        help="the command, only its flags, or `docker run … IMAGE …`; or TARGET and what to change",
    )
    add_remote_options(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.trace is None:
        return predict_target(args)
    return _predict_trace(args)


def _predict_trace(args: argparse.Namespace) -> int:
    from agent.advisor import prediction_report  # noqa: PLC0415 - other commands need no model
    from performance_model.resample import scale_prompts, scale_rate  # noqa: PLC0415
    from performance_model.trace import read_trace  # noqa: PLC0415

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if words and words[0].startswith("-"):
        words = ["vllm", "serve", *words]
    goals = _goals(args)
    if args.search and goals is None:
        raise ConfigError("--search: needs an objective to search for: --ttft, --itl or --e2e")
    rate, prompt = _factor(args.rate, "--rate"), _factor(args.prompt, "--prompt")
    command = parse_command(words)
    try:
        case = build_deployment(args, command)
    except FlagError as error:
        raise ConfigError(f"cannot parse the command: {error}") from error
    trace = read_trace(_read(args.trace, "--trace").splitlines(), str(args.trace))
    report = prediction_report.build_report(
        case,
        scale_prompts(scale_rate(trace, rate), prompt),
        goals,
        law_text=_read(args.law, "--law") if args.law else None,
        log=read_log(args.log) if args.log else (),
        kv_tokens=args.kv_tokens,
        search_settings=args.search,
    )
    if args.json:
        sys.stdout.write(json.dumps(report.as_row(), indent=2) + "\n")
    else:
        sys.stdout.write(report.as_text(command))
    return 0


def _goals(args: argparse.Namespace) -> "Goals | None":
    from performance_model.outcome import Goals  # noqa: PLC0415

    found = {name: parse_objective(getattr(args, name), f"--{name}") for name in ("ttft", "itl", "e2e")}
    if not any(found.values()):
        return None
    limits = {f"{name}_s": one.under_s for name, one in found.items() if one is not None}
    return Goals(share=SHARE, **limits)


def _factor(text: str | None, option: str) -> float:
    """1 without the option. Raises ConfigError."""
    if text is None:
        return 1.0
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 / _MOST_TIMES <= factor <= _MOST_TIMES:
        raise ConfigError(
            f"{option} {text}: must be a factor from 1/{_MOST_TIMES:g} to {_MOST_TIMES:g}, as in 1.5"
        )
    return factor


def _read(path: Path, option: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TRACE + 1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be read: {error.strerror}") from error
    if len(content) > _MAX_TRACE:
        raise ConfigError(f"{option} {path}: is larger than {_MAX_TRACE >> 20} MiB")
    return content.decode("utf-8", "replace")

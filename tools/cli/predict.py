"""`flettner predict`: what a command would do to a recorded load; no server is needed."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flettner.agent.domain.errors import ConfigError
from flettner.tools.advisor.fact_options import add_options, build_serve_config, read_log
from flettner.tools.advisor.objective_options import SHARE, add_objectives, read_objectives
from flettner.tools.advisor.option_files import LAW_HINT, TRACE_HINT, read_option_file
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.cli.predict_target import parse_factor, predict_target
from flettner.tools.cli.remote_command import add_remote_options
from flettner.vllm_facts.errors import FlagError, MetricsPageError
from flettner.vllm_facts.shell_command.serve_command import parse_command

if TYPE_CHECKING:
    from flettner.performance_model.outcome import Goals
    from flettner.vllm_facts.metrics.page_totals import PageTotals


def add_predict(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "predict",
        "predict the latencies of a vllm serve command for recorded requests",
        "The time of a step comes from --law, from --log of a server that ran with "
        "--enable-logging-iteration-details, or from the data sheet of --gpu, with wide bands. Without "
        "--trace the daemon predicts with the model that it has learned of TARGET. Changes nothing. Exit "
        "status 0: predicted; 2: an input cannot be used.",
        usage="flettner predict --trace FILE [options] -- vllm serve MODEL [flags]\n"
        "       flettner predict TARGET [KNOB=VALUE …] [rate=xN] [prompt=xN] [--json]\n"
        "       flettner predict TARGET --capacity [--json]",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded requests, as JSON lines")
    parser.add_argument("--law", type=Path, metavar="FILE", help="a measured law of step time, as JSON")
    parser.add_argument(
        "--kv-tokens", type=int, metavar="N", help="size of the KV cache; default: from --log, or estimated"
    )
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="a /metrics page of the server: what of a request passes outside of the engine, and which share "
        "of the prompts is cached",
    )
    add_objectives(parser)
    parser.add_argument("--rate", metavar="X", help="multiply the request rate by X, such as 1.5")
    parser.add_argument("--prompt", metavar="X", help="multiply the length of prompts by X, such as 2")
    parser.add_argument(
        "--gpu-hour", type=parse_price, metavar="PRICE", help="price of a GPU for an hour: adds the cost"
    )
    parser.add_argument(
        "--capacity",
        action="store_true",
        help="the highest rate within the objectives with its band; of TARGET now and after each open "
        "suggestion",
    )
    parser.add_argument("--search", action="store_true", help="look for better settings near this one")
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- vllm serve MODEL …",
        help="the command, only its flags, or `docker run … IMAGE …`; or TARGET and the changes",
    )
    add_remote_options(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.trace is None:
        return predict_target(args)
    return _predict_trace(args)


def _predict_trace(args: argparse.Namespace) -> int:
    from flettner.performance_model.resample import scale_prompts, scale_rate  # noqa: PLC0415
    from flettner.performance_model.trace import read_trace  # noqa: PLC0415
    from flettner.tools.advisor import prediction_report  # noqa: PLC0415 - other commands need no model

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if words and words[0].startswith("-"):
        words = ["vllm", "serve", *words]
    goals = _goals(args)
    for option in ("search", "capacity"):
        if getattr(args, option) and goals is None:
            raise ConfigError(f"--{option}: needs an objective: --ttft, --itl or --e2e")
    rate, prompt = (
        1.0 if text is None else parse_factor(text, option)
        for text, option in ((args.rate, "--rate"), (args.prompt, "--prompt"))
    )
    command = parse_command(words)
    try:
        config = build_serve_config(args, command)
    except FlagError as error:
        raise ConfigError(f"cannot parse the command: {error}") from error
    trace = read_trace(read_option_file(args.trace, "--trace", TRACE_HINT).splitlines(), str(args.trace))
    report = prediction_report.build_report(
        config,
        scale_prompts(scale_rate(trace, rate), prompt),
        goals,
        law_text=read_option_file(args.law, "--law", LAW_HINT) if args.law else None,
        log=read_log(args.log) if args.log else (),
        page=_read_page(args.metrics) if args.metrics else None,
        kv_tokens=args.kv_tokens,
        search_settings=args.search,
        gpu_hour=args.gpu_hour,
        with_capacity=args.capacity,
    )
    if args.json:
        sys.stdout.write(json.dumps(report.as_row(), indent=2) + "\n")
    else:
        sys.stdout.write(report.as_text(command))
    return 0


def parse_price(text: str) -> float:
    price = float(text)
    if not 0 < price < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no price: give a number above 0, such as 2.5")
    return price


def _read_page(path: Path) -> "PageTotals":
    from flettner.vllm_facts.metrics.totals import totals  # noqa: PLC0415

    hint = "give the output of `curl http://SERVER/metrics`"
    try:
        return totals(read_option_file(path, "--metrics", hint).encode())
    except MetricsPageError as error:
        raise ConfigError(f"--metrics {path}: {error}; {hint}") from error


def _goals(args: argparse.Namespace) -> "Goals | None":
    from flettner.performance_model.outcome import Goals  # noqa: PLC0415

    limits = read_objectives(args)
    return Goals(share=SHARE, **limits) if limits else None

"""`trimtab tune`: tries settings on a spare server with a load, and ends in a command line and a report."""

import argparse
import asyncio
import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.advisor.case_options import add_options, build_deployment
from agent.advisor.objective_options import SHARE, parse_objective
from agent.cli.dispatch import Subparsers, add_command
from agent.domain.errors import ConfigError
from vllm_facts.errors import FlagError
from vllm_facts.shell_command.serve_command import ServeCommand, parse_command

if TYPE_CHECKING:
    from agent.tuning.auto_tune import AutoTuneVariables
    from agent.tuning.run import Choice
    from agent.tuning.session import Plan
    from performance_model.outcome import Goals
    from performance_model.trace import Trace

SEARCHES = ("model", "tpe", "grid", "random", "hill-climb")
_BUDGET = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MAX_TRACE = 256 * 2**20
_BENCH: Sequence[tuple[str, type, str]] = (
    ("num-prompts", int, "number of requests; default 1000"),
    ("request-rate", float, "requests a second"),
    ("burstiness", float, "1: Poisson arrivals, smaller: bursts"),
    ("seed", int, "of the load and of random searches"),
    ("random-input-len", int, "prompt tokens; default 1024"),
    ("random-output-len", int, "output tokens; default 128"),
    ("random-range-ratio", float, "spread of both, 0..1"),
    ("random-prefix-len", int, "tokens that all prompts begin with"),
    ("sharegpt-output-len", int, "output tokens, in place of those of the answers"),
)


def add_tune(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "tune",
        "try settings of a vllm serve command on a spare server",
        "Starts the command on this host, sends the load, stops it, and tries the next setting. The load is "
        "--trace, or made by the options of `vllm bench serve`. A run that was interrupted goes on with the "
        "same --out. Exit status 0: a command line was found; 2: an input cannot be used.",
        usage="trimtab tune (--trace FILE | --request-rate R) --ttft T [options] -- vllm serve MODEL [flags]",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded requests, as JSON lines")
    parser.add_argument("--dataset-name", metavar="NAME", help="random or sharegpt")
    parser.add_argument("--dataset-path", type=Path, metavar="FILE", help="the JSON file of sharegpt")
    for name, kind, what in _BENCH:
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=what)
    for option, what in (
        ("ttft", "time to first token"),
        ("itl", "time between tokens"),
        ("e2e", "whole request"),
    ):
        parser.add_argument(f"--{option}", metavar="T", help=f"objective for the {what}, such as 500ms")
    parser.add_argument("--search", choices=SEARCHES, default="model", help="default: model")
    parser.add_argument("--budget", default="60m", metavar="T", help="for all trials; default 60m")
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="most settings to try")
    parser.add_argument("--law", type=Path, metavar="FILE", help="a measured law of step time, as JSON")
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="size of the KV cache; default: logged")
    parser.add_argument(
        "--serve-params", type=Path, metavar="FILE", help="settings to try, as for `vllm bench sweep serve`"
    )
    parser.add_argument(
        "--auto-tune", type=Path, metavar="FILE", help="take model, load and grid from vLLM's auto_tune.sh"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("trimtab-tune"), metavar="DIR", help="report, trials and logs"
    )
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- vllm serve MODEL …", help="the command to tune"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from agent.tuning import report  # noqa: PLC0415 - other commands need no model
    from agent.tuning.own_server import OwnServer  # noqa: PLC0415
    from agent.tuning.progress import Progress  # noqa: PLC0415
    from agent.tuning.run import tune  # noqa: PLC0415
    from agent.tuning.sweep_files import write_params  # noqa: PLC0415

    script = _auto_tune(args.auto_tune)
    command = _command(args, script)
    plan = _plan(args, command, script)
    try:
        case = build_deployment(args, command)
    except FlagError as error:
        raise ConfigError(f"cannot parse the command: {error}") from error
    server, choice = OwnServer(command), _choice(args, script)
    plan.out.mkdir(parents=True, exist_ok=True)

    async def run() -> Any:  # noqa: ANN401 - its module is imported above
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the server is stopped on the way out
            asyncio.get_running_loop().add_signal_handler(number, signal.raise_signal, signal.SIGINT)
        await server.check()
        return await tune(plan, choice, case, server, Progress())

    outcome = asyncio.run(run())
    (plan.out / "report.html").write_text(report.as_html(outcome), "utf-8")
    (plan.out / "report.json").write_text(json.dumps(report.as_row(outcome), indent=1) + "\n", "utf-8")
    write_params(plan.out / "serve_params.json", [one.changes for one in outcome.trials if not one.round])
    if args.json:
        sys.stdout.write(json.dumps(report.as_row(outcome), indent=2) + "\n")
    else:
        sys.stdout.write(report.as_text(outcome))
    return 0


def _plan(args: argparse.Namespace, command: ServeCommand, script: "AutoTuneVariables | None") -> "Plan":
    from agent.tuning.session import Plan  # noqa: PLC0415

    return Plan(
        command=command,
        trace=_load(args, script),
        goals=_goals(args, script),
        out=args.out,
        budget_s=_seconds(args.budget),
        logs_steps=args.search == "model" and args.law is None,
        most_trials=args.trials,
    )


def _choice(args: argparse.Namespace, script: "AutoTuneVariables | None") -> "Choice":
    from agent.tuning.run import Choice  # noqa: PLC0415
    from agent.tuning.sweep_files import read_params  # noqa: PLC0415
    from performance_model.step_law import read_law  # noqa: PLC0415

    given = read_params(args.serve_params, "--serve-params") if args.serve_params else ()
    return Choice(
        search=args.search,
        law=read_law(_read(args.law, "--law"), "--law") if args.law else None,
        given=given or (script.points if script else ()),
        kv_tokens=args.kv_tokens,
        seed=args.seed or 0,
    )


def _command(args: argparse.Namespace, script: "AutoTuneVariables | None") -> ServeCommand:
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words and script is not None:
        words = list(script.command)
    return parse_command(words)


def _auto_tune(path: Path | None) -> "AutoTuneVariables | None":
    if path is None:
        return None
    from agent.tuning.auto_tune import read_variables  # noqa: PLC0415

    return read_variables(path)


def _load(args: argparse.Namespace, script: "AutoTuneVariables | None") -> "Trace":
    from agent.tuning.bench_options import BenchOptions  # noqa: PLC0415
    from performance_model.trace import read_trace  # noqa: PLC0415

    given = {
        field.name: value
        for field in fields(BenchOptions)
        if (value := getattr(args, field.name)) is not None
    }
    made = sorted(name for name in given if name != "seed")
    if args.trace is not None:
        if made:
            raise ConfigError(f"--trace and --{made[0].replace('_', '-')}: give one load, not both")
        return read_trace(_read(args.trace, "--trace").splitlines(), str(args.trace))
    if "request_rate" not in given:
        raise ConfigError("no load is given: --trace FILE, or --request-rate R with the data set's options")
    if script is not None:
        lengths = {
            "random_input_len": script.input_len,
            "random_prefix_len": script.prefix_len,
            "random_output_len": script.output_len,
        }
        given = {**lengths, **given}
    return BenchOptions(**given).build()


def _goals(args: argparse.Namespace, script: "AutoTuneVariables | None") -> "Goals":
    from performance_model.outcome import Goals  # noqa: PLC0415

    found = {name: parse_objective(getattr(args, name), f"--{name}") for name in ("ttft", "itl", "e2e")}
    limits = {f"{name}_s": one.under_s for name, one in found.items() if one is not None}
    if not limits and script is not None and script.e2e_s is not None:
        limits = {"e2e_s": script.e2e_s}
    if not limits:
        raise ConfigError("no objective to tune for: give --ttft, --itl or --e2e, such as --ttft 500ms")
    return Goals(share=SHARE, **limits)


def _seconds(text: str) -> float:
    found = _BUDGET.fullmatch(text)
    if not found or not float(found[1]):
        raise ConfigError(f"--budget {text}: not a time; write it as in 60m or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


def _read(path: Path, option: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TRACE + 1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be read: {error.strerror}") from error
    if len(content) > _MAX_TRACE:
        raise ConfigError(f"{option} {path}: is larger than {_MAX_TRACE >> 20} MiB")
    return content.decode("utf-8", "replace")

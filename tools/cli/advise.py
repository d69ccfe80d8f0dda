"""`flettner advise`: check a running vLLM server for problems, from its metrics or its log."""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.lateness import misses_any, misses_objective
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Gpu, Latency, Reading
from flettner.lint.fixes import Fixes, find_errors, find_fixes
from flettner.lint.rules import all_lints
from flettner.rules.table import HEALTH
from flettner.tools.advisor.fact_options import add_options, build_serve_config, missing_facts, read_log
from flettner.tools.advisor.flag_consistency import FlagMismatches, find_mismatches
from flettner.tools.advisor.objective_options import add_objectives, parse_objective
from flettner.tools.advisor.render import as_row, as_text, format_command, format_no_command, format_unknown
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.terminal.values import escape_text
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command, parse_command
from flettner.vllm_facts.values import Knob, Setting, Value, is_same

if TYPE_CHECKING:
    from flettner.tools.advisor.run_policies import PolicyFindings
    from flettner.tools.advisor.scrape import Window

NO_FINDINGS, FINDINGS = 0, 1
ENGINES = "data_parallel_size"
BY_LOAD = frozenset({"B1", "B3"})  # rules on limits of the batch that look low by the flags alone
LIVE_S, SAVED_S = 30.0, 30.0
ALARM_TTFT = Objective(under_s=1.0, share=0.99)  # without an SLO, 1 % above 1 s is a warning
_MIB_PER_GIB = 1024
_MIN_COVERAGE = 0.8  # of the window; below it the policies propose nothing


def add_advise(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "advise",
        "check a running vLLM server for problems and improvements",
        "Reads its metrics, two saved scrapes of them, or its log. Exit status 0: no findings; 1: findings, "
        "--flags that do not match the server, or the server is not healthy; 2: the server or an option "
        "cannot be read.",
    )
    parser.add_argument(
        "url", nargs="?", metavar="URL", help="address of the server, such as http://127.0.0.1:8000"
    )
    parser.add_argument(
        "--for", dest="watch_s", metavar="S", help=f"seconds to observe it; default: {LIVE_S:g}"
    )
    parser.add_argument(
        "--scrape",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a saved /metrics page; give two, the older first",
    )
    parser.add_argument(
        "--seconds", metavar="S", help=f"seconds between the two scrapes; default: {SAVED_S:g}"
    )
    parser.add_argument(
        "--flags",
        metavar="TEXT",
        help="the flags of the server as one text: --flags='--max-num-seqs 64'",
    )
    add_objectives(parser, ("ttft", "itl"))
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from flettner.tools.advisor import scrape  # noqa: PLC0415 - usage errors need no metrics parser

    slo = _slo(args)
    if args.flags is not None:
        _command(args.flags, "")  # reports its errors before the long observation
    seen = _observe(args, slo)
    command, whose = _find_command(args, seen.model)
    reported = scrape.setting_of(seen.reading.facts)
    if seen.engines > 1 and not (command and ENGINES in command.setting):
        reported = {**reported, ENGINES: seen.engines}
    shown = command or ServeCommand(argv=("vllm", "serve", seen.model or "MODEL"))
    try:
        config = build_serve_config(args, shown, version=seen.reading.facts.get("version", ""))
    except FlagError as error:
        raise ConfigError(f"--flags: {error}") from error
    reading = _with_facts(seen.reading, config)
    if args.ttft is None and reading.waiting.high <= 0 and misses_objective(reading.itl, slo.itl):
        slo = replace(slo, ttft=None)  # the promise for tokens comes before an alarm that no queue causes
    still = reading.stands_still
    mismatches = find_mismatches(config.setting, reported, reading, seen.model)
    assumed = mismatches.correct({} if command is None else config.setting, reported)
    policies = _run_policies(reading, config, slo, assumed, mismatches)
    if seen.idle or still:
        policies = replace(
            policies, findings=tuple(finding for finding in policies.findings if finding.rule in HEALTH)
        )
    current = {**reported, **policies.assumed}
    policies = replace(policies, findings=_drop_unchanged(policies.findings, {**assumed, **current}))
    lints = all_lints() if command or config.log else ()
    if whose:  # the server runs with these flags
        lints = tuple(lint for lint in lints if "V1" not in lint.rules)
    if not seen.idle and not _has_load_problem(reading, slo):
        lints = tuple(lint for lint in lints if not set(lint.rules) <= BY_LOAD)
    fixes = find_fixes(config, lints, policies.findings)
    better = edit_command(replace(shown, env={} if shown.before else config.env), fixes.to, fixes.env)
    window = {**_summarise(reading), "idle": seen.idle, "stands_still": still, "requests": seen.requests}
    window |= {"servers": seen.servers, "flags_of": whose, "flags": list(shown.argv) if whose else None}
    refused = sorted({rule for rule, _ in find_errors(fixes.after(config), lints)})
    broken = policies.broken
    if mismatches:
        config = replace(config, setting={**config.setting, **current})
    if args.json:
        more = {"window": window, "doubts": mismatches.messages, "broken": broken}
        offered, unknown = None if refused else better, _missing_facts(config, command)
        row = as_row(fixes, config, offered, assumed=current, unknown=unknown, more=more)
        text = json.dumps(row, indent=2) + "\n"
    else:
        text = _format_window(window) + _format_mismatches(mismatches)
        text += _format_advice(fixes, config, current, window)
        text += _format_better(fixes, better, refused, is_known=command is not None)
        text += "".join(f"skipped: {escape_text(why)}\n" for why in broken) + format_unknown(
            _missing_facts(config, command)
        )
    sys.stdout.write(text)
    return FINDINGS if fixes.findings or mismatches else NO_FINDINGS


def _find_command(args: argparse.Namespace, model: str) -> tuple[ServeCommand | None, str]:
    """Return the command, and the process or container that it was read from: "" if an option has it."""
    from flettner.tools.advisor.local_servers import read_command  # noqa: PLC0415 - as above

    if args.flags is not None:
        return _command(args.flags, model), ""
    return (read_command(args.url) if args.url else None) or (None, "")


def _has_load_problem(reading: Reading, slo: Slo) -> bool:
    """Return whether requests wait or are late: only then a limit on the batch can be too low."""
    return reading.waiting.high > 0 or misses_any(reading, slo)


def _observe(args: argparse.Namespace, slo: Slo) -> "Window":
    """Return the load, from the source that the options name."""
    from flettner.tools.advisor import from_log, scrape  # noqa: PLC0415 - as above

    if args.url and not args.scrape:
        return scrape.observe(args.url, _seconds(args.watch_s, "--for", LIVE_S), slo)
    if len(args.scrape) == len(("older", "newer")) and not args.url:
        older, newer = args.scrape
        return scrape.compare_pages(older, newer, _seconds(args.seconds, "--seconds", SAVED_S), slo)
    if args.log and not args.url and not args.scrape:
        return from_log.read_load(read_log(args.log), slo)
    sources = "both a URL and scrapes" if args.url else f"no URL and {len(args.scrape)} scrapes"
    raise ConfigError(
        f"advise: {sources} given; give the URL of a server (http://127.0.0.1:8000), two saved scrapes "
        "(--scrape A.prom --scrape B.prom), or the log of its busy time (--log FILE)"
    )


def _run_policies(
    reading: Reading, config: ServeConfig, slo: Slo, assumed: Setting, mismatches: FlagMismatches
) -> "PolicyFindings":
    """Run the policies. Flags of another server are ignored, with the model that they name."""
    from flettner.tools.advisor import run_policies  # noqa: PLC0415 - the policies take a quarter of a second

    if not mismatches:
        return run_policies.run_all(reading, assumed, slo, config)
    config = replace(config, setting=assumed)
    if mismatches.other_server or mismatches.over_cap:
        config = replace(config, model=None, env={})
    result = run_policies.run_all(reading, assumed, slo, config)
    findings = (finding for finding in result.findings if not (mismatches.over_cap and finding.to))
    return replace(result, findings=tuple(findings))


def _drop_unchanged(findings: Sequence[Finding], current: Setting) -> tuple[Finding, ...]:
    """The findings without values that the server has already; without those that had no other change."""
    left = []
    for finding in findings:
        to = {
            knob: value
            for knob, value in finding.to.items()
            if knob not in current or not is_same(current[knob], value)
        }
        if to or not finding.to:
            left.append(replace(finding, to=to))
    return tuple(left)


def _with_facts(reading: Reading, config: ServeConfig) -> Reading:
    """Return the reading with the version and GPU from the options, as no driver was asked."""
    facts = {**reading.facts, "version": config.version} if config.version else reading.facts
    card = config.card
    gpus: tuple[Gpu, ...] = ()
    if card is not None:
        total_mib = None if card.memory_gib is None else card.memory_gib * _MIB_PER_GIB
        gpus = tuple(
            Gpu(index=index, uuid="", name=card.name, memory_total_mib=total_mib)
            for index in range(config.gpus or 1)
        )
    return replace(reading, facts=facts, gpus=reading.gpus or gpus)


def _command(flags: str, model: str) -> ServeCommand:
    """`--flags`: a complete command, or only flags, to which the server's own model is added."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"--flags: cannot be parsed: {error}; quote them as in a shell") from error
    if not words or words[0].startswith("-"):
        words = ["vllm", "serve", *words]
        if model and "model" not in parse_command(words).setting:
            words.insert(2, model)
    return parse_command(words)


def _slo(args: argparse.Namespace) -> Slo:
    """Return the objectives from the options. Default for TTFT: ALARM_TTFT, except for the batch profile."""
    ttft, itl = (parse_objective(args.ttft, "--ttft"), parse_objective(args.itl, "--itl"))
    if args.ttft is None and args.profile != "batch":
        ttft = ALARM_TTFT
    return Slo(ttft=ttft, itl=itl)


def _seconds(text: str | None, option: str, default: float) -> float:
    if text is None:
        return default
    try:
        number = float(text.removesuffix("s"))
    except ValueError:
        number = math.nan
    if not 0 < number <= 24 * 3600:
        raise ConfigError(f"{option} {text}: must be a number of seconds above 0 (at most a day)")
    return number


def _format_better(fixes: Fixes, better: ServeCommand, refused: list[str], *, is_known: bool) -> str:
    if refused and fixes.findings:
        return f"\n{format_no_command(refused)}\n"
    if not fixes.to and not fixes.env:
        return "\n"
    head = "THE COMMAND WITH THESE CHANGES" if is_known else "ADD THESE FLAGS TO THE SERVER'S COMMAND"
    return f"\n{head}\n{format_command(better)}\n"


def _summarise(reading: Reading) -> dict[str, Any]:
    """Return the main numbers of the reading."""
    shown: dict[str, Any] = {
        "seconds": round(reading.span_s, 3),
        "coverage": round(reading.coverage, 3),
        "running": round(reading.running.mean, 3),
        "waiting": round(reading.waiting.mean, 3),
    }
    for name in ("kv_usage", "preemptions_per_s", "prompt_tokens_per_s", "generation_tokens_per_s"):
        trend = getattr(reading, name)
        shown[name] = None if trend is None else round(trend.mean, 4)
    for name in ("ttft", "itl", "e2e"):
        latency: Latency | None = getattr(reading, name)
        shown[f"{name}_p99_s"] = None if latency is None else round(latency.p99, 4)
    return shown


def _format_advice(
    fixes: Fixes,
    config: ServeConfig,
    current: Mapping[Knob, Value],
    window: Mapping[str, Any],
) -> str:
    text = ""
    unhealthy = any(finding.rule in HEALTH for finding in fixes.findings)
    if window["idle"] and not unhealthy:
        text += "idle: a server without traffic gives no evidence\n"
    elif window["stands_still"]:
        text += "stalled: requests run, but no token was generated; check its log before its flags\n"
    elif not fixes.findings:
        text += "no findings\n"
    if window["coverage"] < _MIN_COVERAGE and not window["idle"] and not unhealthy:
        text += (
            f"the server answered only {window['coverage']:.0%} of the time: not enough data for the rules\n"
        )
    if fixes.findings:
        text += f"\n{as_text(fixes, config, assumed=current)}"
    return text


def _format_window(window: Mapping[str, Any]) -> str:
    parts = [f"{window['running']:.1f} running", f"{window['waiting']:.1f} waiting"]
    if window["kv_usage"] is not None:
        parts.append(f"KV cache {window['kv_usage']:.0%} full")
    if window["generation_tokens_per_s"] is not None:
        parts.append(f"{window['generation_tokens_per_s']:.0f} tokens/s")
    if window["ttft_p99_s"] is not None:
        parts.append(f"TTFT p99 {window['ttft_p99_s']:.3f} s")
    ended = f"{window['requests']:.0f} requests ended"
    servers = f"1 of the {window['servers']} servers behind this name " if window["servers"] > 1 else ""
    text = f"{servers}observed for {window['seconds']:g} s: {', '.join(parts)}, {ended}\n"
    if window["flags"]:
        text += f"its flags, from {window['flags_of']}: {escape_text(shlex.join(window['flags'][2:]))}\n"
    return text


def _format_mismatches(mismatches: FlagMismatches) -> str:
    if not mismatches:
        return ""
    text = "".join(f"{message}: --flags do not match the server\n" for message in mismatches.messages)
    if mismatches.over_cap:
        return (
            f"{text}no change is proposed from the measurements: give the flags that the server runs with\n"
        )
    return f"{text}the measurements are judged by what the server itself reports of these flags\n"


def _missing_facts(config: ServeConfig, command: ServeCommand | None) -> list[str]:
    """List the missing facts as for lint, and the flags of the server."""
    flags = [] if command else ["its flags (--flags '…')"]
    return [*flags, *missing_facts(config)]

"""`trimtab advise`: what an expert would say about a running server, from a look at its metrics."""

import argparse
import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.advisor.case_options import add_options, case_of, log_of, unknown
from agent.advisor.flag_consistency import FlagMismatches, doubts
from agent.advisor.render import as_json, as_text, not_known, paste
from agent.cli.dispatch import Subparsers
from agent.domain.errors import ConfigError
from agent.domain.model import Objective, Slo
from agent.domain.reading import Gpu, Latency, Reading
from agent.terminal.tables import safe
from lint.advice import Advice, advise
from lint.precedence import ranked
from lint.rules import all_lints
from vllm_facts.command.serve_command import ServeCommand, edit_command, parse_command
from vllm_facts.deployment import Deployment
from vllm_facts.errors import FlagError
from vllm_facts.values import Knob, Setting, Value

if TYPE_CHECKING:
    from agent.advisor.run_policies import PolicyFindings
    from agent.advisor.scrape import Window

NOTHING, FINDINGS = 0, 1  # 2: bad usage, as for every command
ENGINES = "data_parallel_size"
LIVE_S, SAVED_S = 30.0, 30.0
ALARM_TTFT = Objective(under_s=1.0, share=0.99)  # rulebook Z7: TTFT p99 above 1 s is a warning
_MIB_PER_GIB = 1024
_ENOUGH = 0.8  # of the window: below that the policies are silent
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s)?")


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "advise",
        help="what an expert would say about a running server",
        description="Or about two saved scrapes, or its log. Exit status 0: nothing to say; 1: findings; "
        "2: the server or an option cannot be read.",
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="of the server: http://127.0.0.1:8000")
    parser.add_argument("--for", dest="watch_s", metavar="S", help=f"seconds to watch it; {LIVE_S:g} else")
    parser.add_argument(
        "--scrape", action="append", default=[], type=Path, metavar="FILE", help="twice: the older page first"
    )
    parser.add_argument(
        "--seconds", metavar="S", help=f"between the two scrapes; taken to be {SAVED_S:g} else"
    )
    parser.add_argument(
        "--flags",
        metavar="TEXT",
        help="what the server was started with, as one text: --flags='--max-num-seqs 64'",
    )
    parser.add_argument(
        "--ttft", metavar="T", help="500ms: time to first token that 95 %% of requests shall meet"
    )
    parser.add_argument(
        "--itl", metavar="T", help="50ms: time between tokens that 95 %% of requests shall meet"
    )
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from agent.advisor import scrape  # noqa: PLC0415 - the parser of pages need not be there to complain

    slo = _slo(args)
    command = _command(args.flags, "") if args.flags is not None else None  # its mistakes, before a long look
    seen = _seen_of(args, slo)
    command = _command(args.flags, seen.model) if command is not None else None
    told = scrape.setting_of(seen.reading.facts)
    if seen.engines > 1 and not (command and ENGINES in command.setting):
        told = {**told, ENGINES: seen.engines}
    known = command or ServeCommand(argv=("vllm", "serve", seen.model or "MODEL"))
    try:
        case = case_of(args, known, version=seen.reading.facts.get("version", ""))
    except FlagError as error:
        raise ConfigError(f"--flags: {error}") from error
    reading = _with_facts(seen.reading, case)
    still = reading.stands_still
    doubted = doubts(case.setting, told, reading, seen.model)
    believed = told if doubted or command is None else {**told, **case.setting}
    heard = None if seen.idle or still else _live(reading, case, slo, believed, doubted)
    lints = all_lints() if command or case.log else ()
    advice = advise(case, lints, ranked, heard.findings if heard else ())
    better = edit_command(replace(known, env={} if known.before else case.env), advice.to, advice.env)
    window = {**_numbers(reading), "idle": seen.idle, "stands_still": still, "requests": seen.requests}
    current = {**told, **(heard.assumed if heard else {})}
    broken = heard.broken if heard else ()
    if args.json:
        more = {"window": window, "doubts": doubted.said, "broken": broken}
        text = as_json(advice, case, better, assumed=current, unknown=_unknown(case, command), more=more)
    else:
        text = _seen(window) + _doubted(doubted)
        text += _text(advice, case, current, better, window, given=command is not None)
        text += "".join(f"passed over: {safe(why)}\n" for why in broken) + not_known(_unknown(case, command))
    sys.stdout.write(text)
    return FINDINGS if advice.findings else NOTHING


def _seen_of(args: argparse.Namespace, slo: Slo) -> "Window":
    """From the one source that the person names."""
    from agent.advisor import from_log, scrape  # noqa: PLC0415 - as above

    if args.url and not args.scrape:
        return scrape.watched(args.url, _seconds(args.watch_s, "--for", LIVE_S), slo)
    if len(args.scrape) == len(("older", "newer")) and not args.url:
        older, newer = args.scrape
        return scrape.saved(older, newer, _seconds(args.seconds, "--seconds", SAVED_S), slo)
    if args.log and not args.url and not args.scrape:
        return from_log.logged(log_of(args.log), slo)
    found = "both a URL and scrapes" if args.url else f"no URL and {len(args.scrape)} scrapes"
    raise ConfigError(
        f"advise: {found} given; give the URL of a server (http://127.0.0.1:8000), two saved scrapes "
        "(--scrape A.prom --scrape B.prom), or the log of its busy time (--log FILE)"
    )


def _live(
    reading: Reading, case: Deployment, slo: Slo, believed: Setting, doubted: FlagMismatches
) -> "PolicyFindings":
    """What the policies say. Of flags that cannot be the server's neither they nor the model are believed."""
    from agent.advisor import run_policies  # noqa: PLC0415 - the policies take a quarter of a second

    if not doubted:
        return run_policies.said(reading, believed, slo, case)
    heard = run_policies.said(reading, believed, slo, replace(case, setting=believed, model=None, env={}))
    kept = (finding for finding in heard.findings if not (doubted.beyond and finding.to))
    return replace(heard, findings=tuple(kept))


def _with_facts(reading: Reading, case: Deployment) -> Reading:
    """The reading with what the options tell: no driver was asked."""
    facts = {**reading.facts, "version": case.version} if case.version else reading.facts
    card = case.card
    gpus: tuple[Gpu, ...] = ()
    if card is not None:
        total_mib = None if card.memory_gib is None else card.memory_gib * _MIB_PER_GIB
        gpus = tuple(
            Gpu(index=index, uuid="", name=card.name, memory_total_mib=total_mib)
            for index in range(case.gpus or 1)
        )
    return replace(reading, facts=facts, gpus=reading.gpus or gpus)


def _command(flags: str, model: str) -> ServeCommand:
    """`--flags`: a whole command, or only the flags of one, which serves what the server says."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"--flags: cannot be read: {error}; write them as in a shell") from error
    if not words or words[0].startswith("-"):
        words = ["vllm", "serve", *words]
        if model and "model" not in parse_command(words).setting:
            words.insert(2, model)
    return parse_command(words)


def _slo(args: argparse.Namespace) -> Slo:
    """What the person promises; without a word about it the usual alarm stands for TTFT, but for batches."""
    ttft, itl = (_objective(args.ttft, "--ttft"), _objective(args.itl, "--itl"))
    if args.ttft is None and args.profile != "batch":
        ttft = ALARM_TTFT
    return Slo(ttft=ttft, itl=itl)


def _objective(text: str | None, option: str) -> Objective | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text)
    if not found or not float(found[1]):
        raise ConfigError(f"{option} {text}: is no duration; write it as in 500ms or 1.5s")
    return Objective(under_s=float(found[1]) / (1000 if found[2] == "ms" else 1), share=0.95)


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


def _numbers(reading: Reading) -> dict[str, Any]:
    """What was seen, in short."""
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


def _text(
    advice: Advice,
    case: Deployment,
    current: Mapping[Knob, Value],
    better: ServeCommand,
    window: Mapping[str, Any],
    *,
    given: bool,
) -> str:
    text = ""
    if window["idle"]:
        text += "idle: nothing can be learned of a server without traffic\n"
    elif window["stands_still"]:
        text += (
            "it stands still: requests run, and not one token was made; look at its log before its flags\n"
        )
    elif not advice.findings:
        text += "nothing to say\n"
    if window["coverage"] < _ENOUGH and not window["idle"]:
        text += (
            f"it answered for only {window['coverage']:.0%} of the time: no rule is sure of anything then\n"
        )
    if advice.findings:
        text += f"\n{as_text(advice, case, assumed=current)}"
    if advice.to or advice.env:
        head = "THE COMMAND WITH THESE CHANGES" if given else "ADD THESE TO THE SERVER'S OWN COMMAND"
        text += f"\n{head}\n{paste(better)}"
    return text + "\n"


def _seen(window: Mapping[str, Any]) -> str:
    said = [f"{window['running']:.1f} running", f"{window['waiting']:.1f} waiting"]
    if window["kv_usage"] is not None:
        said.append(f"KV cache {window['kv_usage']:.0%} full")
    if window["generation_tokens_per_s"] is not None:
        said.append(f"{window['generation_tokens_per_s']:.0f} tokens/s")
    if window["ttft_p99_s"] is not None:
        said.append(f"TTFT p99 {window['ttft_p99_s']:.3f} s")
    return f"seen over {window['seconds']:g} s: {', '.join(said)}, {window['requests']:.0f} requests ended\n"


def _doubted(doubted: FlagMismatches) -> str:
    if not doubted:
        return ""
    said = "".join(f"{one}: are these really its flags?\n" for one in doubted.said)
    if doubted.beyond:
        return f"{said}no change is drawn from what was measured: give the flags that it runs with\n"
    return f"{said}what was measured is judged by what the server tells of itself\n"


def _unknown(case: Deployment, command: ServeCommand | None) -> list[str]:
    """As for lint; a promise of latency is asked for, too."""
    lacking = [] if command else ["how it was started (--flags '…')"]
    return [*lacking, *unknown(case)]

"""`flettner predict TARGET max_num_seqs=64 rate=x1.5`: what the daemon's model of a target predicts."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flettner.agent.api.client import ApiClient, Json
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model_search import MOST_TIMES
from flettner.tools.cli.knob_argument import parse_knob
from flettner.tools.cli.remote_command import add_remote_options, call_daemon, path, print_answer
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import COST_TITLES, format_prediction
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.values import describe_changes

LOADS = ("rate", "prompt")
PATIENCE_S = 150.0  # the worker's limit of 60 s, after another call that takes as long
ROWS = (
    ("attainment", "requests within the objectives"),
    ("goodput_per_s", "such requests per second"),
    ("ttft_p50_s", "TTFT, median"),
    ("ttft_p90_s", "TTFT, 90 %"),
    ("itl_p50_s", "time between tokens, median request"),
    ("itl_p90_s", "time between tokens, 90 % of requests"),
    ("e2e_p90_s", "whole request, 90 %"),
    ("peak_kv_share", "KV cache, peak"),
    ("preemptions_per_request", "preemptions per request"),
    ("tokens_per_s", "generated tokens per second"),
    *COST_TITLES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    target: str
    body: Json


def predict_target(args: argparse.Namespace) -> int:
    question, given = _parse(args)
    if given.capacity:
        if question.body != {"to": {}}:
            raise ConfigError(
                "--capacity tells of the flags in force and of the open suggestions: leave out the changes; "
                "without --capacity the prediction of a change has its capacity, without a band"
            )
        return call_daemon(lambda _, daemon: _show_capacity(given, daemon, question.target), given)
    return call_daemon(lambda _, daemon: _show(given, daemon, question), given)


def _parse(args: argparse.Namespace) -> tuple[_Question, argparse.Namespace]:
    """Return the words after the options; options may come among them. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="flettner predict", add_help=False, exit_on_error=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--json", action="store_true", default=args.json)
    parser.add_argument("--capacity", action="store_true", default=args.capacity)
    add_remote_options(parser)
    parser.set_defaults(url=args.url, token_file=args.token_file)
    try:
        given, unknown = parser.parse_known_intermixed_args(args.command)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    if unknown or not given.words or "=" in given.words[0] or "vllm" in given.words[:1]:
        raise ConfigError(
            "give --trace FILE and a command after --, or the name of a target and the changes, as in "
            "`flettner predict chat max_num_seqs=64 rate=x1.5`" + _hint(args.command)
        )
    target, *words = given.words
    return _Question(target=target, body=_body(words)), given


def _hint(words: list[str]) -> str:
    """Say how to write flags of vLLM that were given as such; return no text without any."""
    flags = [word for word in words[1:] if word.startswith("-") or "=" not in word]
    try:
        given = parse_setting(["vllm", "serve", "MODEL", *flags])
    except FlagError:
        return ""
    words_of_knobs = " ".join(
        f"{knob}={json.dumps(given[knob])}" for knob in given.keys() & (KNOBS.keys() - {"model"})
    )
    return f"; here {words_of_knobs}" if words_of_knobs else ""


def _body(words: list[str]) -> Json:
    changes: dict[str, object] = {}
    body: Json = {"to": changes}
    for word in words:
        name, _, value = word.partition("=")
        if name in LOADS:
            body[name] = parse_factor(value, name)
            continue
        try:
            knob, wanted = parse_knob(word)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(str(error)) from error
        changes[knob] = wanted
    return body


def parse_factor(text: str, option: str) -> float:
    """`1.5` or `x1.5`. Raises ConfigError."""
    try:
        factor = float(text.lstrip("x×"))  # noqa: RUF001 - the sign of multiplication
    except ValueError:
        factor = math.nan
    if not 1 / MOST_TIMES <= factor <= MOST_TIMES:
        raise ConfigError(
            f"{option} {text}: must be a factor from 1/{MOST_TIMES:g} to {MOST_TIMES:g}, as in x1.5"
        )
    return factor


def _show(args: argparse.Namespace, daemon: ApiClient, question: _Question) -> int:
    patient = replace(daemon, patience_s=PATIENCE_S)
    answer = patient.post(path("targets", question.target, "predictions"), question.body)
    return print_answer(args, answer, prediction_text(answer, question.body))


def _show_capacity(args: argparse.Namespace, daemon: ApiClient, target: str) -> int:
    answer = replace(daemon, patience_s=PATIENCE_S).get(path("targets", target, "capacity"))
    return print_answer(args, answer, capacity_text(answer))


def capacity_text(answer: Json) -> str:
    servers = answer["servers"]
    several = f", {servers} servers share the load" if servers > 1 else ""
    head = (
        f"{answer['target']}: requests per second of one server up to which {answer['share']:.0%} meet the "
        f"objectives; recorded are {answer['rate_rps']:.2f}{several}. Step times from the "
        f"{answer['law_source']}. In brackets: 80 % of the draws."
    )
    forecasts = (answer["now"], *answer["suggestions"])
    has_cost = any(forecast["cost_per_thousand_good_requests"] for forecast in forecasts)
    rows = [
        (
            forecast["suggestion"] or "now",
            describe_changes(forecast["to"]) or "the flags in force",
            forecast["why_not"] or _capacity(forecast["rate_rps"]),
            *([_cost(forecast)] if has_cost else ()),
        )
        for forecast in forecasts
    ]
    notes = "".join(
        format_sentence(f"{forecast['suggestion'] or 'now'} is less certain: {forecast['extrapolation']}")
        for forecast in forecasts
        if forecast["extrapolation"]
    )
    columns = ("", "FLAGS", "REQUESTS/S", *(("COST OF 1,000 GOOD REQUESTS",) if has_cost else ()))
    return format_sentence(head) + "\n" + format_table(columns, rows) + ("\n" if notes else "") + notes


def _capacity(rate: Mapping[str, float] | None) -> str:
    return "none" if rate is None else f"up to {_band('rate_per_s', rate)}"


def _cost(forecast: Json) -> str:
    name = "cost_per_thousand_good_requests"
    return _band(name, forecast[name]) if forecast[name] else "-"


def prediction_text(answer: Json, body: Json) -> str:
    changes = describe_changes(answer["to"]) or "the flags in force"
    loads = "".join(f", {name} ×{body[name]:g}" for name in LOADS if name in body)  # noqa: RUF001
    head = (
        f"{answer['target']}: {answer['requests']:,} recorded requests ({answer['rate_rps']:.2f} a second "
        f"for each server); step times from the {answer['law_source']}. In brackets: 80 % of the draws."
    )
    warning = (
        format_sentence(f"vLLM may refuse this: {answer['warning']}") + "\n" if answer["warning"] else ""
    )
    far = (
        format_sentence(f"Less certain: {answer['extrapolation']}") + "\n" if answer["extrapolation"] else ""
    )
    rows = [
        (title, _band(name, answer["now"][name]), _band(name, answer["then"][name]))
        for name, title in ROWS
        if name in answer["now"] and name in answer["then"]
    ]
    return (
        format_sentence(head)
        + "\n"
        + warning
        + far
        + format_table(("", "now", f"{changes}{loads}"), [*rows, *_capacity_rows(answer)])
        + "\n"
        + format_table(
            ("REQUESTS/S", "TTFT 90 %, NOW", "THEN", "TOKENS 90 %, NOW", "THEN"), list(_curve_rows(answer))
        )
    )


def _capacity_rows(answer: Json) -> Iterator[tuple[str, str, str]]:
    now, then = answer["capacity"], answer["then_capacity"]
    if now and then:
        yield "requests/s within the objectives, one server", _rate(now), _rate(then)
        yield "servers for the load", str(now["servers"] or "-"), str(then["servers"] or "-")


def _rate(capacity: Mapping[str, float | None]) -> str:
    rate = capacity["rate_rps"]
    return "none" if rate is None else f"up to {rate:.2f}"


def _curve_rows(answer: Json) -> Iterator[tuple[str, ...]]:
    for point in answer["curve"]:
        numbers = (
            _band(name, point[side][name]) if name in point[side] else "-"
            for name in ("ttft_p90_s", "itl_p90_s")
            for side in ("now", "then")
        )
        yield f"{point['rate_rps']:.2f}", *numbers


def _band(name: str, band: Mapping[str, float]) -> str:
    value, low, high = (format_prediction(name, band[part]) for part in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
